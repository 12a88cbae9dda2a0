#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "snug/base/text_file.h"
#include "snug/report/progress.h"
#include "snug/state/training_state.h"
#include "snug/train/trainer.h"
#include "tests/base/scratch.h"
#include "tests/device/test_device.h"

/// Runs that are stopped in the middle and resumed.
namespace snug::train {

inline constexpr std::int64_t kSteps = 40, kHalf = 20;

inline std::filesystem::path text_file() {
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "snug_resume.txt";
  std::ofstream out(path);
  for (int i = 0; i < 2000; ++i) out << i * i << (i % 7 == 0 ? ".\n" : " and ");
  return path;
}

inline Config forty_steps() {
  Config c;
  c.model.blocks = 2;
  c.model.width = 32;
  c.model.heads = 2;
  c.model.sequence = 32;
  c.model.own.set("dropout", 0.1);
  c.data.path = text_file();
  c.train.device = snug::testing::test_device().str();
  c.train.batch = 4;
  c.train.steps = kSteps;
  c.train.validate_every = 10;
  c.train.validation_batches = 2;
  c.state.every = kHalf;
  return c;
}

struct Outcome {
  std::map<std::string, std::string> files;               // of the last state
  std::map<std::int64_t, nlohmann::ordered_json> losses;  // by step
};

inline Outcome outcome(const std::filesystem::path& folder) {
  Outcome o;
  const std::filesystem::path state = folder / "state" / state::state_name(kSteps);
  for (const char* file : {"weights.safetensors", "optimizer.safetensors"}) o.files[file] = read_text(state / file);
  o.files["random"] = nlohmann::json::parse(read_text(state / "values.json"))["random"].dump();
  std::ifstream lines(folder / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::ordered_json::parse(line);
    if (json.contains("validation")) o.losses[json["validation"]["step"]].push_back(json["validation"]["loss"]);
    if (json.contains("step")) o.losses[json["step"]] = {json["loss"], json["gradient_norm"]};
  }
  return o;
}

inline TrainResult run_in(Config config, const std::filesystem::path& folder, Start start = Start::Anew) {
  config.output.folder = folder;
  report::Progress silent = report::Progress::silent();
  TrainOptions options;
  options.start = start;
  return train(config, silent, options);
}

/// Resumes a copy of the run from the middle, under settings that may have changed.
inline Outcome resumed(const std::filesystem::path& whole, const std::string& name, const Config& config) {
  const std::filesystem::path folder = snug::testing::scratch("resume/" + name);
  std::filesystem::create_directories(folder / "state");
  std::filesystem::copy(whole / "state" / state::state_name(kHalf), folder / "state" / state::state_name(kHalf),
                        std::filesystem::copy_options::recursive);
  const TrainResult result = run_in(config, folder, Start::Resume);
  EXPECT_EQ(result.resumed_from, kHalf);
  EXPECT_EQ(result.steps, kSteps);
  return outcome(folder);
}

inline void expect_same(const Outcome& whole, const Outcome& half) {
  EXPECT_EQ(whole.losses.size(), kSteps);
  EXPECT_EQ(half.losses.size(), kSteps - kHalf);
  for (const auto& [step, values] : half.losses) EXPECT_EQ(values, whole.losses.at(step)) << "step " << step;
  for (const auto& [file, bytes] : half.files) {
    EXPECT_FALSE(bytes.empty());
    EXPECT_TRUE(bytes == whole.files.at(file)) << file;
  }
}

}  // namespace snug::train
