// Where a run tells what it does.
#include "snug/train/sinks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/train/config.h"
#include "tests/base/scratch.h"

namespace snug::train {
namespace {

using snug::testing::scratch;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Existing = JsonLines::Existing;

StepRecord step_of(std::int64_t number, double seconds) {
  StepRecord record;
  record.step = number;
  record.steps = 3;
  record.loss = 2.5;
  record.seconds = seconds;
  record.replayed_ops = 10 + number;
  record.evictions = 2;
  return record;
}

TEST(Sinks, SummarizeTheSteps) {
  TrainResult result;
  SummarySink sink(result, /*tokens_per_step=*/100);
  for (const double seconds : {1.0, 4.0, 2.0}) sink.step_over(step_of(static_cast<std::int64_t>(seconds), seconds));
  sink.validated(3, 1.5);
  sink.step_over(step_of(3, 2.0));
  sink.step_over(step_of(4, 2.0));
  sink.steps_end();
  EXPECT_EQ(result.step_seconds_median, 2.0);
  EXPECT_EQ(result.tokens_per_second, 50.0);
  EXPECT_EQ(result.replayed_ops, 14) << "of the last step";
  EXPECT_EQ(result.evictions, 10) << "of all";
  EXPECT_EQ(result.validation_loss, 1.5);
}

TEST(Sinks, MetricsHaveALineForEachStepBetweenConfigurationAndResult) {
  const auto file = scratch("sinks/metrics") / "metrics.jsonl";
  report::Progress silent = report::Progress::silent();
  MetricsSink sink(file, Existing::Replace, silent);
  sink.begins(Config{}, 7);
  StepRecord record = step_of(0, 1);
  record.tokens = 4096;
  record.epoch = 0.25;
  record.learning_rate = 3e-4;
  sink.step(record);
  sink.step_over(record);
  sink.validated(4, 3);
  sink.ends(TrainResult{});
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_text(file));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0]["parameters"], 7);
  EXPECT_EQ(lines[0]["config"], nlohmann::json(to_json(Config{})));
  EXPECT_EQ(lines[1]["replayed_ops"], 10);
  EXPECT_EQ(lines[1]["tokens"], 4096);
  EXPECT_EQ(lines[1]["epoch"], 0.25);
  EXPECT_EQ(lines[1]["learning_rate"], 3e-4);
  EXPECT_EQ(lines[2].dump(), R"({"validation":{"loss":3.0,"step":4}})");
  EXPECT_TRUE(lines[3].contains("result"));
}

TEST(Sinks, MetricsThatCannotBeWrittenAreToldOfAtTheEnd) {
  report::Progress silent = report::Progress::silent();
  MetricsSink sink("/dev/full", Existing::Append, silent);
  EXPECT_NO_THROW(sink.begins(Config{}, 7));
  EXPECT_NO_THROW(sink.step(step_of(0, 1)));
  EXPECT_THAT([&] { sink.ends(TrainResult{}); }, ThrowsMessage<Error>(HasSubstr("No space left")));
}

}  // namespace
}  // namespace snug::train
