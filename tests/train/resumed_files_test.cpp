// A run goes on only beside the files that it began with: all that decide it, and none besides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "snug/base/text_file.h"
#include "snug/report/progress.h"
#include "snug/train/trainer.h"
#include "tests/base/fault.h"
#include "tests/base/scratch.h"
#include "tests/train/reference_files.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ResumedFiles : public ::testing::Test {
 protected:
  ResumedFiles() {
    const fs::path folder = snug::testing::scratch("resumed_files/run");
    fs::copy(kHere / "tiny", folder / "base");
    fs::copy(kHere / "tiny_adapter", folder / "adapter");
    write_text(folder / "text", std::string(2000, 'a'));
    config.model.kind = "llama";
    config.model.path = folder / "base";
    config.model.sequence = 16;
    config.lora.adapter = folder / "adapter";
    config.data.path = folder / "text";
    config.train.batch = 1;
    config.train.steps = 1;
    config.train.validation_batches = 0;
    config.output.folder = folder / "out";
    run(Start::Anew);
    config.train.steps = 2;
  }

  TrainResult run(Start start) const {
    report::Progress silent = report::Progress::silent();
    TrainOptions options;
    options.start = start;
    return train(config, silent, options);
  }

  void replace(const fs::path& file, const std::string& from, const std::string& to) const {
    std::string text = read_text(file);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    write_text(file, text.replace(at, from.size(), to));
  }

  Config config;
};

TEST_F(ResumedFiles, AsTheyWereTheyAreTaken) { EXPECT_EQ(run(Start::Resume).resumed_from, 1); }

TEST_F(ResumedFiles, OfTheModelItsConfigurationDecides) {
  replace(fs::path(config.model.path) / "config.json", "\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-03");
  EXPECT_THAT(snug::testing::fault([&] { run(Start::Resume); }), HasSubstr("model.path"));
}

TEST_F(ResumedFiles, OfAnAdapterItsSettingsDecide) {
  replace(fs::path(config.lora.adapter) / "adapter_config.json", "\"lora_alpha\": 8", "\"lora_alpha\": 16");
  EXPECT_THAT(snug::testing::fault([&] { run(Start::Resume); }), HasSubstr("lora.adapter"));
}

TEST_F(ResumedFiles, WhatDoesNotDecideMayChange) {
  replace(fs::path(config.lora.adapter) / "adapter_config.json", "\"peft_version\": \"0.21.2\"",
          "\"peft_version\": \"0.22.0\"");
  write_text(fs::path(config.model.path) / "README.md", "new");
  EXPECT_EQ(run(Start::Resume).resumed_from, 1);
}

}  // namespace
}  // namespace snug::train
