// Random models, shapes and budgets: none overruns its budget, what fits trains bitwise as without, and what does not
// is refused before training, with a floor that is right.
#include <gtest/gtest.h>

#include <algorithm>

#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/equivalence/nets.h"
#include "tests/equivalence/trials.h"

namespace snug {
namespace {

using testing::Dice;
using testing::expect_same;
using testing::kTrials;
using testing::StepUnderTest;
using testing::Task;
using testing::test_memory;
using testing::trials;

Task random_task(Dice& dice) {
  switch (dice.between(0, 3)) {
    case 0:
      return testing::resnet_task(dice.between(8, 20), dice.between(3, 9), 8 * dice.between(3, 5));
    case 1:
      return testing::unet_task(dice.between(6, 14), dice.between(2, 4), 8 * dice.between(4, 6));
    default: {
      const std::int64_t heads = dice.between(1, 4);
      models::GptOptions options;
      options.blocks = dice.between(2, 6);
      options.heads = heads;
      options.width = 32 * heads * dice.between(1, 2);
      options.sequence = dice.between(33, 129);
      options.vocabulary = dice.between(50, 600);
      options.dropout = static_cast<double>(dice.between(0, 1)) * 0.1;
      return testing::gpt_task(options, dice.between(3, 8), dice.between(0, 1) == 1);
    }
  }
}

/// Runs a step under `budget` and says whether it was refused before it began.
std::optional<DoesNotFit::Floor> refused(const Task& task, StepUnderTest& test, const testing::Outcome& plain,
                                         Bytes budget) {
  std::optional<DoesNotFit::Floor> floor;
  const Bytes before = test_memory().stats().allocated;
  test_memory().release_cached();
  task.model->zero_grad();
  const Bytes mapped = test_memory().stats().mapped;
  std::optional<Session> session;
  try {
    test_memory().reset_peak();
    session.emplace(fit([&](int) { return task.forward(); }, 0, {.budget = budget, .device = testing::test_device()}));
  } catch (const DoesNotFit& error) {
    EXPECT_LE(test_memory().stats().mapped_peak, std::max(budget, mapped)) << "recording passed the limit";
    EXPECT_LE(test_memory().stats().allocated, before);
    return error.floor();
  }
  const auto planned = test.run([&] {
    test_memory().release_cached();
    test_memory().reset_peak();
    const at::Tensor loss = session->backward(task.forward);
    EXPECT_LE(test_memory().stats().mapped_peak, budget);
    test_memory().set_limit(std::nullopt);  // for the copies of what is compared
    return loss;
  });
  expect_same(plain, planned);
  return std::nullopt;
}

class Cap : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(Cap, HoldsInRandomTrialsAndRefusesWhatCannotFit) {
  int trained = 0, refusals = 0;
  for (std::uint64_t seed = GetParam(); seed < GetParam() + static_cast<std::uint64_t>(trials()); ++seed) {
    Dice dice(seed);
    torch::manual_seed(static_cast<std::int64_t>(seed));
    const Task task = random_task(dice);
    StepUnderTest test({task.model});
    const auto plain = test.run_plain(task.forward);
    const auto graph = replay::record_step(task.forward, test_memory()).graph;
    const plan::Planner planner(graph, "optimal");
    const Bytes floor = plan::Budget::for_limit(1).floor_for(planner.floor(graph));
    const Bytes most = plan::Budget::for_limit(1).floor_for(plan::plan_none(graph).predicted_peak);
    const Bytes budget = floor + (most - floor) * dice.between(0, 100) / 100;
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << task.name << ", budget " << budget << ", floor "
                                      << floor << ", unplanned " << most);
    const auto above = refused(task, test, plain, std::max(budget, floor * 101 / 100));
    EXPECT_FALSE(above) << "refused, naming " << above->floor << " by " << above->strategy;
    ++trained;
    if (dice.between(0, 1) == 0) continue;
    const auto below = refused(task, test, plain, floor * 99 / 100);
    EXPECT_TRUE(below);
    if (!below) continue;
    ++refusals;
    EXPECT_NEAR(static_cast<double>(below->floor), static_cast<double>(floor), 0.01 * static_cast<double>(floor));
    if (dice.between(0, 3) == 0) {
      EXPECT_FALSE(refused(task, test, plain, below->floor * 101 / 100));
      EXPECT_TRUE(refused(task, test, plain, below->floor * 99 / 100));
    }
    if (HasFailure()) break;
  }
  EXPECT_EQ(trained, trials());
  EXPECT_GT(refusals, trials() == kTrials ? kTrials / 3 : 0);
}

INSTANTIATE_TEST_SUITE_P(SeedsFrom, Cap, ::testing::Values(0, kTrials));

}  // namespace
}  // namespace snug
