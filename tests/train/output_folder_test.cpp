// The folder that a run writes to: what is in it before, and what may not be.
#include "snug/train/output_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "snug/base/text_file.h"
#include "tests/base/fault.h"
#include "tests/base/scratch.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using snug::testing::fault;
using snug::testing::scratch;
using ::testing::AllOf;
using ::testing::HasSubstr;

void put_aside(const fs::path& folder) {
  report::Progress silent = report::Progress::silent();
  put_earlier_run_aside(folder, silent);
}

TEST(OutputFolder, WhatAnEarlierRunLeftIsPutAsideAsAWhole) {
  const fs::path folder = scratch("output_folder/whole");
  const std::vector<std::pair<std::string, std::string>> files{{"state", "step-0000000001"},
                                                               {"adapter", "adapter_model.safetensors"},
                                                               {"model", "model-00001-of-00002.safetensors"}};
  const auto leave = [&](const std::string& text) {
    for (const auto& [name, file] : files) {
      fs::create_directory(folder / name);
      write_text(folder / name / file, text);
    }
    write_text(folder / "metrics.jsonl", text);
  };
  leave("first");
  write_text(folder / "notes", "of the user");
  put_aside(folder);
  EXPECT_TRUE(fs::exists(folder / "notes"));
  leave("second");
  put_aside(folder);
  for (const auto& [number, text] : {std::pair{"earlier-1", "first"}, {"earlier-2", "second"}}) {
    for (const auto& [name, file] : files) {
      EXPECT_FALSE(fs::exists(folder / name));
      EXPECT_EQ(read_text(folder / number / name / file), text);
    }
    EXPECT_EQ(read_text(folder / number / "metrics.jsonl"), text);
  }
  EXPECT_FALSE(fs::exists(folder / "metrics.jsonl"));
}

TEST(OutputFolder, ATrainedAdapterAloneIsPutAsideToo) {
  const fs::path folder = scratch("output_folder/adapter");
  fs::create_directory(folder / "adapter");
  write_text(folder / "adapter" / "adapter_config.json", "{}");
  put_aside(folder);
  EXPECT_TRUE(fs::exists(folder / "earlier-1" / "adapter"));
}

TEST(OutputFolder, WhereNoRunWasNothingIsMade) {
  const fs::path folder = scratch("output_folder/none");
  write_text(folder / "state", "somebody's own file");
  fs::create_symlink("/dev/null", folder / "metrics.jsonl");
  fs::create_directory(folder / "model");
  write_text(folder / "model" / "layers.py", "a source folder of somebody's own");
  put_aside(folder);
  put_aside(folder / "not there");
  EXPECT_TRUE(fs::exists(folder / "model" / "layers.py"));
  EXPECT_FALSE(fs::exists(folder / "earlier-1"));
  EXPECT_TRUE(fs::is_symlink(folder / "metrics.jsonl"));
}

std::string fault_of_folder(const auto& change) {
  Config config;
  change(config);
  return fault([&] { check_output_folder(config); });
}

TEST(OutputFolder, IsNotAmongTheTexts) {
  const fs::path texts = scratch("output_folder/texts");
  fs::create_directories(texts / "runs");
  write_text(texts / "file", "text");
  const auto with = [&](const fs::path& data, const fs::path& output) {
    return fault_of_folder([&](Config& c) {
      c.data.path = data;
      c.output.folder = output;
    });
  };
  for (const fs::path& inside : {texts, texts / "runs" / "x", texts / "runs" / ".." / "y", texts / "x" / ""})
    EXPECT_THAT(with(texts, inside), AllOf(HasSubstr("is in data.path"), HasSubstr(texts.string()))) << inside;
  const fs::path before = fs::current_path();
  fs::current_path(texts);
  EXPECT_THAT(with(".", "runs/x"), HasSubstr("is in data.path = ."));
  fs::current_path(before);
  for (const fs::path& outside : {texts.parent_path() / "texts-of-mine", texts / ".." / "out", fs::path()})
    EXPECT_EQ(with(texts, outside), "none") << outside;
  EXPECT_EQ(with(texts / "file", texts), "none") << "one file is no folder of them";
}

TEST(OutputFolder, IsNotWhereTheRunReadsWhatItGoesOnWith) {
  const fs::path folder = scratch("output_folder/inputs");
  fs::create_directory(folder / "adapter");
  const auto with_adapter = [&](const fs::path& adapter) {
    return fault_of_folder([&](Config& c) {
      c.lora.adapter = adapter;
      c.output.folder = folder;
    });
  };
  EXPECT_THAT(with_adapter(folder / "adapter"), AllOf(HasSubstr("lora.adapter"), HasSubstr("--resume")));
  EXPECT_EQ(with_adapter(folder / "earlier-1" / "adapter"), "none");
  EXPECT_THAT(fault_of_folder([&](Config& c) {
                c.model.path = folder / "model" / "model.safetensors";
                c.output.folder = folder;
              }),
              HasSubstr("model.path"));
  EXPECT_THAT(fault_of_folder([&](Config& c) {
                c.data.tokenizer = folder / "model" / "tokenizer.json";
                c.output.folder = folder;
              }),
              HasSubstr("data.tokenizer"));
}

}  // namespace
}  // namespace snug::train
