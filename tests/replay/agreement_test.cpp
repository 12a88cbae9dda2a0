// Processes that train together record again together, and refuse together.
#include "snug/replay/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/group.h"

namespace snug {
namespace {

using testing::GroupOfTwo;
using ::testing::HasSubstr;
using testing::test_memory;
using ::testing::ThrowsMessage;

/// A process that records a step, of which some runs ask for more than there is.
struct Process {
  int forwards = 0, backwards = 0;
  int too_large_until = 0;  // of its forward passes
  std::optional<plan::StepGraph> graph = {};
  std::string error = {};
  bool does_not_fit = false;

  void record(std::optional<Bytes> limit, const std::shared_ptr<Agreement>& agreement) {
    const at::Tensor weight = at::ones({64, 64}).requires_grad_(), x = at::ones({32, 64});
    weight.register_hook([this](const at::Tensor&) { ++backwards; });
    const auto step = [&] {
      if (++forwards <= too_large_until) (void)at::empty({1 << 28});
      return at::mm(x, weight).tanh().sum();
    };
    try {
      graph = replay::record_step_within(limit, step, test_memory(), {.agreement = agreement}).graph;
    } catch (const DoesNotFit& refused) {
      does_not_fit = true;
      error = refused.what();
    } catch (const Error& refused) {
      error = refused.what();
    }
  }
};

void record_together(Process& first, Process& second) {
  const Bytes limit = test_memory().stats().allocated + 64_MiB;
  GroupOfTwo group;
  group.run([&](const auto& agreement) { first.record(limit, agreement); },
            [&](const auto& agreement) { second.record(limit, agreement); });
}

TEST(Agreement, ARefusedRecordingIsRunAgainInAllProcesses) {
  Process refused{.too_large_until = 1}, other;
  record_together(refused, other);
  ASSERT_TRUE(refused.graph && other.graph) << refused.error << other.error;
  EXPECT_EQ(refused.forwards, 1 + 2);
  EXPECT_EQ(other.forwards, 1 + 2);
  EXPECT_EQ(other.backwards, 2) << "it does not go backward alone, where collectives would wait for the other";
  EXPECT_EQ(refused.graph->fingerprint(), other.graph->fingerprint());
}

/// Nothing is refused here, and what is refused there is recorded again here.
TEST(Agreement, AProcessWithoutALimitRecordsAgainWithTheOther) {
  const Bytes limit = test_memory().stats().allocated + 64_MiB;
  for (const int too_large_until : {1, 100}) {
    Process refused{.too_large_until = too_large_until}, other;
    GroupOfTwo group;
    group.run([&](const auto& agreement) { refused.record(limit, agreement); },
              [&](const auto& agreement) { other.record(std::nullopt, agreement); });
    EXPECT_EQ(other.forwards, too_large_until == 1 ? 1 + 2 : 2);
    EXPECT_EQ(refused.graph.has_value(), too_large_until == 1) << refused.error;
    EXPECT_EQ(other.graph.has_value(), too_large_until == 1) << other.error;
    if (too_large_until == 1) continue;
    EXPECT_TRUE(refused.does_not_fit) << refused.error;
    EXPECT_THAT(other.error, HasSubstr("recorded without a budget here, but not in another process"));
  }
}

TEST(Agreement, ARefusalInTheSecondRunIsOneOfAll) {
  Process other;
  const Bytes limit = test_memory().stats().allocated + 64_MiB;
  int runs = 0;
  GroupOfTwo group;
  group.run(
      [&](const std::shared_ptr<Agreement>& agreement) {
        const at::Tensor weight = at::ones({64, 64}).requires_grad_();
        const auto step = [&] {
          if (++runs == 2) (void)at::empty({1 << 28});
          return weight.tanh().sum();
        };
        EXPECT_NO_THROW((void)replay::record_step_within(limit, step, test_memory(), {.agreement = agreement}));
      },
      [&](const auto& agreement) { other.record(limit, agreement); });
  EXPECT_EQ(runs, 2 + 2);
  EXPECT_EQ(other.forwards, 2 + 2);
  EXPECT_EQ(other.backwards, 1 + 2);
}

TEST(Agreement, WhatNeverFitsInOneProcessIsRefusedInAll) {
  Process refused{.too_large_until = 100}, other;
  record_together(refused, other);
  EXPECT_TRUE(refused.does_not_fit) << refused.error;
  EXPECT_FALSE(other.graph);
  EXPECT_FALSE(other.does_not_fit);
  EXPECT_THAT(other.error, HasSubstr("another process"));
  EXPECT_EQ(other.backwards, 0);
}

TEST(Agreement, AProcessThatIsAloneTakesItsOwnWord) {
  EXPECT_EQ(replay::ask(*alone(), Vote::Yes), Vote::Yes);
  EXPECT_EQ(replay::ask(*alone(), Vote::No), Vote::No);
}

enum class Part { Forward, Backward };

/// Records a step that throws something of its own in this part of it, after `point` runs of that part.
void fail_in(Part part, int point, const std::shared_ptr<Agreement>& agreement) {
  const at::Tensor weight = at::ones({8, 8}).requires_grad_();
  int runs = 0;
  const auto reached = [&](Part here) {
    if (here == part && runs++ == point) throw std::domain_error("no such file");
  };
  weight.register_hook([&](const at::Tensor&) { reached(Part::Backward); });
  const auto step = [&] {
    reached(Part::Forward);
    return weight.tanh().sum();
  };
  const Bytes limit = test_memory().stats().allocated + 64_MiB;
  EXPECT_THAT([&] { (void)replay::record_step_within(limit, step, test_memory(), {.agreement = agreement}); },
              ThrowsMessage<std::domain_error>(HasSubstr("no such file")));
}

TEST(Agreement, WhatFailsInOneProcessEndsInAllAndNamesIt) {
  for (const Part part : {Part::Forward, Part::Backward}) {
    for (const int point : {0, 1}) {
      Process other;
      const Bytes limit = test_memory().stats().allocated + 64_MiB;
      GroupOfTwo group;
      group.run([&](const auto& agreement) { other.record(limit, agreement); },
                [&](const auto& agreement) { fail_in(part, point, agreement); });
      EXPECT_FALSE(other.graph);
      EXPECT_THAT(other.error, HasSubstr("process 1 of the group's 2 (from 0 on) has failed"));
      EXPECT_EQ(other.forwards, point + 1);
      EXPECT_EQ(other.backwards, part == Part::Forward ? point : point + 1) << "no further than the one that failed";
    }
  }
}

TEST(Agreement, AFailureBesideARefusalEndsBoth) {
  Process refused{.too_large_until = 100};
  const Bytes limit = test_memory().stats().allocated + 64_MiB;
  GroupOfTwo group;
  group.run([&](const auto& agreement) { refused.record(limit, agreement); },
            [&](const auto& agreement) { fail_in(Part::Forward, 0, agreement); });
  EXPECT_EQ(refused.forwards, 1);
  EXPECT_THAT(refused.error, HasSubstr("process 1 of the group's 2"));
}

TEST(Agreement, AStepThatCatchesTheEndOfTheGroupEndsAllTheSame) {
  int forwards = 0;
  std::string error;
  GroupOfTwo group;
  group.run(
      [&](const std::shared_ptr<Agreement>& agreement) {
        const at::Tensor weight = at::ones({8, 8}).requires_grad_();
        const auto step = [&] {
          ++forwards;
          at::Tensor loss = weight.tanh().sum();
          try {
            loss.backward();
          } catch (const Error&) {
          }
          return loss;
        };
        try {
          (void)replay::record_step(step, test_memory(), {.agreement = agreement});
        } catch (const replay::GroupEnded& ended) {
          error = ended.what();
        }
      },
      [&](const auto& agreement) { fail_in(Part::Forward, 0, agreement); });
  EXPECT_EQ(forwards, 1);
  EXPECT_THAT(error, HasSubstr("process 1 of the group's 2"));
}

/// A group whose connection has gone.
class Broken final : public Agreement {
 public:
  std::vector<Vote> votes(Vote /*mine*/) override {
    ++asked;
    throw std::runtime_error("connection closed\nframe #0");
  }
  int asked = 0;
};

TEST(Agreement, AVoteThatFailsIsTheLast) {
  const auto group = std::make_shared<Broken>();
  Process process;
  process.record(test_memory().stats().allocated + 64_MiB, group);
  EXPECT_THAT(
      process.error,
      HasSubstr(
          "cannot be reached, and if it failed it says why itself; begin again in all of them (connection closed)"));
  EXPECT_EQ(group->asked, 1);
}

TEST(Agreement, ASessionThatCannotBeMadeInOneProcessIsMadeInNone) {
  const at::Tensor weight = at::ones({64, 64}).requires_grad_();
  const auto step = [&] { return weight.tanh().sum(); };
  const replay::RecordedStep recorded = replay::record_step(step, test_memory());
  const plan::Budget enough = plan::Budget::for_limit(test_memory().stats().allocated + 64_MiB);
  GroupOfTwo group;
  group.run(
      [&](const auto& agreement) {
        EXPECT_THROW(Session(recorded, "sequential(9)", enough, test_memory(), agreement), UsageError);
      },
      [&](const auto& agreement) {
        EXPECT_THAT([&] { const Session session(recorded, "optimal", enough, test_memory(), agreement); },
                    ThrowsMessage<replay::GroupEnded>(HasSubstr("process 0 of the group's 2")));
      });
}

/// A group whose others always go on.
class Willing final : public Agreement {
 public:
  std::vector<Vote> votes(Vote mine) override {
    ++asked;
    return {mine, Vote::Yes};
  }
  int asked = 0;
};

TEST(Agreement, ARefusedStepIsOverThoughItsFunctionMakesRoom) {
  const at::Tensor weight = at::ones({512, 512}).requires_grad_();
  const auto step = [&] { return weight.tanh().sum(); };
  const replay::RecordedStep recorded = replay::record_step(step, test_memory());
  const auto group = std::make_shared<Willing>();
  const Bytes limit = test_memory().stats().allocated + 8_MiB;
  Session session(recorded, "optimal", plan::Budget::for_limit(limit), test_memory(), group);
  at::Tensor in_the_way = at::ones({(limit - test_memory().stats().allocated - 256_KiB) / 4});
  const int before = group->asked;
  const auto overcoming = [&] {
    EXPECT_THROW(weight.tanh(), DoesNotFit);
    in_the_way = at::Tensor();
    EXPECT_THROW(weight.tanh(), DoesNotFit) << "the others have given it up";
    return at::Tensor();
  };
  EXPECT_THROW(session.backward(overcoming), DoesNotFit);
  EXPECT_EQ(group->asked, before + 2) << "whether its plan stands, and whether a new one is made";
  EXPECT_NO_THROW(session.backward(step));
}

TEST(Agreement, SessionsAreMadeByAllOrNone) {
  const at::Tensor weight = at::ones({64, 64}).requires_grad_();
  const auto step = [&] { return weight.tanh().sum(); };
  const replay::RecordedStep recorded = replay::record_step(step, test_memory());
  const plan::Budget enough = plan::Budget::for_limit(test_memory().stats().allocated + 64_MiB);
  const auto limit = test_memory().stats().limit;
  std::string error = {};
  GroupOfTwo group;
  group.run(
      [&](const auto& agreement) {
        EXPECT_THROW(Session(recorded, "optimal", plan::Budget::for_limit(8_KiB), test_memory(), agreement),
                     DoesNotFit);
      },
      [&](const auto& agreement) {
        try {
          const Session session(recorded, "optimal", enough, test_memory(), agreement);
        } catch (const Error& refused) {
          error = refused.what();
        }
      });
  EXPECT_THAT(error, HasSubstr("another process"));
  EXPECT_EQ(test_memory().stats().limit, limit);
}

/// As DistributedDataParallel makes its buckets anew in its second pass.
TEST(Agreement, AStepIsRecordedUntilItIsOneThatWasBeforeInAllProcesses) {
  struct Case {
    int odd_run;  // of the first process, which does more then
    int runs;     // of all of them
  };
  for (const auto& [odd_run, runs] : {Case{0, 2}, {1, 3}, {2, 3}, {-1, 4}}) {
    SCOPED_TRACE(odd_run);
    Process other;
    const Bytes limit = test_memory().stats().allocated + 64_MiB;
    int mine = 0;
    std::size_t operators = 0;
    GroupOfTwo group;
    group.run(
        [&](const std::shared_ptr<Agreement>& agreement) {
          const at::Tensor weight = at::ones({64, 64}).requires_grad_();
          const auto step = [&] {
            ++mine;
            at::Tensor out = weight.tanh();
            for (int i = 0; i < (odd_run < 0 ? mine : mine == odd_run ? 1 : 0); ++i) out = out.sin();
            return out.sum();
          };
          operators = replay::record_step_within(limit, step, test_memory(), {.agreement = agreement}).graph.ops.size();
        },
        [&](const auto& agreement) { other.record(limit, agreement); });
    EXPECT_EQ(mine, runs);
    EXPECT_EQ(other.forwards, runs);
    EXPECT_EQ(operators, odd_run < 0 ? 7U : 3U) << "of the last";
  }
}

}  // namespace
}  // namespace snug
