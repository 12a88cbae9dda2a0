// What a resumed run's configuration may differ in from that of its state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/report/progress.h"
#include "snug/state/manifest.h"
#include "snug/state/training_state.h"
#include "snug/train/trainer.h"
#include "tests/base/fault.h"
#include "tests/base/scratch.h"
#include "tests/train/resumed_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using snug::testing::scratch;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Runs two steps, so that there is a state of them.
Config two_steps_in(const fs::path& folder) {
  Config config = forty_steps();
  config.train.steps = 2;
  run_in(config, folder);
  return config;
}

TEST(Resume, AnotherRunIsRefused) {
  const fs::path folder = scratch("resume/another");
  Config config = two_steps_in(folder);
  const auto fault = [&](const auto& change) -> std::string {
    Config other = config;
    change(other);
    try {
      run_in(other, folder, Start::Resume);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(fault([](Config& c) { c.model.width = 64; }), HasSubstr("model.width was 32 and is 64"));
  EXPECT_THAT(fault([](Config& c) { c.train.seed = 9; }), HasSubstr("train.seed was 0 and is 9"));
  EXPECT_THAT(fault([](Config& c) { c.train.batch = 5; }), HasSubstr("train.batch was 4 and is 5"));
  EXPECT_THAT(fault([](Config& c) { c.train.steps = 3; }), IsEmpty());
  Config nowhere = config;
  report::Progress silent = report::Progress::silent();
  TrainOptions options;
  options.start = Start::Resume;
  EXPECT_THROW(train(nowhere, silent, options), UsageError);
}

/// A state that was saved with another configuration.
void change_config(const fs::path& state, const std::function<void(nlohmann::json&)>& change) {
  auto values = nlohmann::json::parse(read_text(state / "values.json"));
  change(values["config"]);
  const std::string text = values.dump(), manifest = state / state::kManifest;
  write_text(state / "values.json", text);
  state::Manifest m = state::parse_manifest(read_text(manifest), manifest);
  m.files.at("values.json") = {.bytes = text.size(), .hash = state::hash_of(text)};
  write_text(manifest, state::format_manifest(m));
}

/// A state that was saved when these keys did not exist.
void forget_keys(const fs::path& state, const std::vector<std::pair<const char*, const char*>>& keys) {
  change_config(state, [&](nlohmann::json& config) {
    for (const auto& [section, key] : keys) config[section].erase(key);
  });
}

TEST(Resume, TheNumbersOfAnOptimizerMayChangeButNotWhatItKeeps) {
  const fs::path folder = scratch("resume/sgd");
  Config config = forty_steps();
  config.optimizer.kind = "sgd";
  config.train.steps = 2;
  run_in(config, folder);
  config.train.steps = 3;
  config.optimizer.own.set("weight_decay", 0.05);
  EXPECT_EQ(run_in(config, folder, Start::Resume).resumed_from, 2);
  config.train.steps = 4;
  config.optimizer.own.set("momentum", 0.0);
  EXPECT_THAT(snug::testing::fault([&] { run_in(config, folder, Start::Resume); }),
              HasSubstr("optimizer.momentum was 0.9 and is 0.0"));
}

TEST(Resume, KeysThatAreNewerThanTheStateHadTheirDefaults) {
  const fs::path folder = scratch("resume/newer-keys");
  Config config = two_steps_in(folder);
  const fs::path state = folder / "state" / state::state_name(2);
  forget_keys(state, {{"model", "key_heads"}, {"data", "packing"}, {"lora", "rank"}});
  config.train.steps = 3;
  config.state.every = 3;
  EXPECT_EQ(run_in(config, folder, Start::Resume).resumed_from, 2);
  forget_keys(folder / "state" / state::state_name(3), {{"model", "dropout"}});
  config.train.steps = 4;
  EXPECT_THAT(snug::testing::fault([&] { run_in(config, folder, Start::Resume); }),
              HasSubstr("model.dropout was 0.0 and is 0.1"));
}

TEST(Resume, KeysThatThisVersionDoesNotKnowAreToldAndLeftOut) {
  const fs::path folder = scratch("resume/unknown-keys");
  Config config = two_steps_in(folder);
  change_config(folder / "state" / state::state_name(2), [](nlohmann::json& saved) {
    saved["train"]["lookahead"] = 5;
    saved["quantum"] = {{"bits", 2}};
    saved["memory"]["strategy"] = "clairvoyant";
  });
  config.train.steps = 3;
  config.output.folder = folder;
  ::testing::internal::CaptureStderr();
  report::Progress progress = report::Progress::plain(stderr);
  TrainOptions options;
  options.start = Start::Resume;
  EXPECT_EQ(train(config, progress, options).resumed_from, 2);
  const std::string told = ::testing::internal::GetCapturedStderr();
  for (const char* const one : {"\"lookahead\"", "\"quantum\"", "clairvoyant"}) EXPECT_THAT(told, HasSubstr(one));
}

}  // namespace
}  // namespace snug::train
