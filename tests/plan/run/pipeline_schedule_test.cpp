#include "snug/plan/run/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "snug/base/errors.h"

namespace snug::plan {
namespace {

using ::testing::HasSubstr;

/// "F0 F1 B0 ...", with a chunk behind a dot where there are several.
std::string text_of(const std::vector<PipelineAction>& actions, int chunks) {
  constexpr const char* kLetters = "FBIW";
  std::string text;
  for (const PipelineAction& action : actions) {
    if (!text.empty()) text += ' ';
    text += kLetters[static_cast<int>(action.kind)];
    text += std::to_string(action.micro_batch);
    if (chunks > 1) text += "." + std::to_string(action.chunk);
  }
  return text;
}

std::vector<std::string> texts_of(const PipelineSchedule& schedule, int processes, int micro_batches) {
  std::vector<std::string> texts;
  for (const auto& actions : actions_of(schedule, {processes, micro_batches}))
    texts.push_back(text_of(actions, chunks_of(schedule)));
  return texts;
}

TEST(PipelineSchedule, IsThatOfItsPaper) {
  EXPECT_THAT(texts_of(FThenB{}, 2, 3), ::testing::ElementsAre("F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"));
  EXPECT_THAT(texts_of(OneFOneB{}, 3, 4),
              ::testing::ElementsAre("F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"));
  // Two stages in each of two processes.
  EXPECT_THAT(
      texts_of(Interleaved{2}, 2, 4),
      ::testing::ElementsAre("F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
                             "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"));
  EXPECT_THAT(texts_of(ZeroBubble{}, 2, 3),
              ::testing::ElementsAre("F0 F1 I0 W0 F2 I1 W1 I2 W2", "F0 I0 F1 I1 W0 F2 I2 W1 W2"));
}

/// Each goes forward and backward with each micro-batch once, backward in their order.
void expect_complete(const std::vector<std::vector<PipelineAction>>& all, int micro_batches, int chunks) {
  for (const auto& actions : all) {
    std::map<std::pair<int, int>, std::string> done;  // by chunk and micro-batch
    std::map<int, int> last;                          // by chunk, gone backward
    for (const PipelineAction& action : actions) {
      std::string& so_far = done[{action.chunk, action.micro_batch}];
      so_far += "FBIW"[static_cast<int>(action.kind)];
      if (action.kind != PipelineAction::Kind::Backward && action.kind != PipelineAction::Kind::BackwardWeights)
        continue;
      EXPECT_EQ(action.micro_batch, last[action.chunk]++);
    }
    EXPECT_EQ(done.size(), static_cast<std::size_t>(micro_batches * chunks));
    for (const auto& [which, what] : done) EXPECT_TRUE(what == "FB" || what == "FIW") << what;
  }
}

constexpr StageSeconds kSeconds{.forward = 1, .backward_input = 1.25, .backward_weights = 0.75};
constexpr double kAll = 3;

/// The time that is lost, and the activations that are there, against the closed forms of the papers.
TEST(PipelineSchedule, TakesWhatTheClosedFormsSay) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 24; ++m) {
      for (const PipelineSchedule& schedule : std::vector<PipelineSchedule>{FThenB{}, OneFOneB{}}) {
        const auto actions = actions_of(schedule, {p, m});
        expect_complete(actions, m, 1);
        const PipelineRun run = run_pipeline(actions, {kSeconds});
        EXPECT_DOUBLE_EQ(run.seconds, (m + p - 1) * kAll) << name_of(schedule) << " " << p << " " << m;
        for (int rank = 0; rank < p; ++rank) {
          const bool all = schedule == PipelineSchedule(FThenB{});
          EXPECT_EQ(run.most_alive[static_cast<std::size_t>(rank)], all ? m : std::min(m, p - rank));
          EXPECT_DOUBLE_EQ(run.busy[static_cast<std::size_t>(rank)], m * kAll);
        }
      }
    }
  }
}

TEST(PipelineSchedule, InterleavedLosesAsManyTimesLess) {
  for (int p = 1; p <= 6; ++p) {
    for (int rounds = 1; rounds <= 4; ++rounds) {
      for (int v = 1; v <= 4; ++v) {
        const int m = p * rounds;
        const auto actions = actions_of(Interleaved{v}, {p, m});
        expect_complete(actions, m, v);
        const StageSeconds each{kSeconds.forward / v, kSeconds.backward_input / v, kSeconds.backward_weights / v};
        const PipelineRun run = run_pipeline(actions, {each});
        EXPECT_NEAR(run.seconds, m * kAll + (p - 1) * kAll / v, 1e-9) << p << " " << m << " " << v;
        for (int rank = 0; rank < p; ++rank) {
          const int ahead = 2 * (p - rank - 1) + (v - 1) * p;
          EXPECT_EQ(run.most_alive[static_cast<std::size_t>(rank)], std::min(m * v, ahead + 1));
        }
      }
    }
  }
}

/// Qi et al. 2024, table 2: (p - 1)(F + B - W), with the activations of 1F1B's first process in all.
TEST(PipelineSchedule, ZeroBubbleLosesWhatGradientsOfWeightsDoNotFill) {
  constexpr StageSeconds kEven{.forward = 1, .backward_input = 1, .backward_weights = 1};
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 24; ++m) {
      const auto actions = actions_of(ZeroBubble{}, {p, m});
      expect_complete(actions, m, 1);
      const PipelineRun run = run_pipeline(actions, {kEven}),
                        other = run_pipeline(actions_of(OneFOneB{}, {p, m}), {kEven});
      EXPECT_LE(run.seconds, other.seconds);
      if (m >= 2 * p) {
        EXPECT_DOUBLE_EQ(run.seconds, m * 3.0 + (p - 1)) << p << " " << m;
      }
      for (const int alive : run.most_alive) EXPECT_LE(alive, p);
    }
  }
}

/// The slowest stage decides.
TEST(PipelineSchedule, WaitsForTheSlowestStage) {
  std::vector<StageSeconds> seconds(4, kSeconds);
  seconds[2].forward = 4;
  const PipelineRun run = run_pipeline(actions_of(OneFOneB{}, {4, 16}), seconds);
  EXPECT_GE(run.seconds, 16 * 6.0);
  EXPECT_LE(run.seconds, 16 * 6.0 + 3 * kAll + 3);
  EXPECT_DOUBLE_EQ(run.busy[2], 16 * 6.0);
}

/// Once onward and once back through all stages, where nothing else has to wait.
TEST(PipelineSchedule, WhatIsHandedOverIsOnItsWayTwiceBetweenAllStages) {
  constexpr double kHandOver = 0.5;
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const std::vector<double> ways(static_cast<std::size_t>(p), kHandOver);
      const PipelineRun all_first = run_pipeline(actions_of(FThenB{}, {p, m}), {kSeconds}, ways),
                        one_by_one = run_pipeline(actions_of(OneFOneB{}, {p, m}), {kSeconds}, ways);
      EXPECT_DOUBLE_EQ(all_first.seconds, (m + p - 1) * kAll + 2 * (p - 1) * kHandOver) << p << " " << m;
      EXPECT_GE(one_by_one.seconds, all_first.seconds) << "who waits for what comes back waits longer";
      for (const double busy : one_by_one.busy) EXPECT_DOUBLE_EQ(busy, m * kAll);
      if (m == 1) {
        EXPECT_DOUBLE_EQ(one_by_one.seconds, all_first.seconds);
      }
    }
  }
}

TEST(PipelineSchedule, IsReadAndWritten) {
  for (const std::string text : {"f_then_b", "1f1b", "interleaved(3)", "zero_bubble"})
    EXPECT_EQ(name_of(pipeline_schedule_from(text)), text);
  for (const std::string text : {"gpipe", "interleaved", "interleaved()", "interleaved(0)", "interleaved(2x)", ""}) {
    try {
      (void)pipeline_schedule_from(text);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("it must be one of f_then_b, 1f1b, interleaved(STAGES), zero_bubble"));
    }
  }
  EXPECT_THROW((void)actions_of(Interleaved{2}, {4, 6}), UsageError);
  EXPECT_THROW((void)actions_of(OneFOneB{}, {0, 6}), UsageError);
}

TEST(PipelineSchedule, TellsWhereProcessesWaitForEachOther) {
  using Kind = PipelineAction::Kind;
  EXPECT_THROW((void)run_pipeline({{{Kind::Backward, 0}, {Kind::Forward, 0}}}, {kSeconds}), std::logic_error);
}

}  // namespace
}  // namespace snug::plan
