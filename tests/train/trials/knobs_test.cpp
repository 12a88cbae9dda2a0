// Random models, batches, knobs and budgets, as configurations: no step overruns its budget, each takes what was
// predicted, and weights end as without a budget, bit for bit.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/optim/optimizer.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/training_step.h"
#include "tests/equivalence/bitwise.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

/// Draws that are the same on every platform.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool coin() { return between(0, 1) == 1; }
  template <class Any>
  auto one_of(const Any& all) {
    return *std::next(std::begin(all), between(0, static_cast<std::int64_t>(std::size(all)) - 1));
  }

 private:
  std::mt19937_64 engine_;
};

/// One that validate() takes; nullopt for keys that do not go together.
std::optional<Config> random_config(Dice& dice, const std::string& name) {
  Config c = two_blocks("trials/" + name);
  c.model.own = own_defaults(model_families());
  c.model.kind = dice.one_of(std::vector{"gpt", "gpt2", "llama"});
  c.model.blocks = dice.between(1, 3);
  c.model.heads = dice.between(1, 4);
  c.model.width = 16 * c.model.heads * dice.between(1, 3);
  c.model.sequence = dice.between(17, 120);
  c.model.vocabulary = dice.between(256, 3000);
  if (c.model.kind != "llama" && dice.coin()) c.model.own.set("dropout", 0.1);
  c.model.loss = dice.coin() ? LossKind::Tiled : LossKind::Plain;
  if (c.model.loss == LossKind::Tiled) c.model.loss_tile = dice.between(1, 3);
  if (dice.coin()) c.model.attention = models::AttentionMethod::Products;
  if (dice.coin()) c.model.mlp_tile = dice.between(16, 200);
  c.train.accumulate = dice.between(1, 3);
  c.train.batch = c.train.accumulate * dice.between(1, 4);
  c.train.seed = dice.between(0, 1000);
  c.train.validation_batches = 0;
  c.optimizer.kind = std::string(dice.one_of(optim::optimizer_kinds())->name);
  c.optimizer.clip_norm = dice.coin() ? 1 : 0;
  c.optimizer.in_backward = dice.coin();
  c.precision.compute = dice.one_of(std::vector{Compute::Fp32, Compute::Bf16, Compute::Bf16, Compute::Fp16});
  if (c.precision.compute == Compute::Bf16 && dice.coin()) {
    c.precision.weights = TrainedWeights::Bf16;
    c.precision.updates = dice.coin() ? Updates::Master : Updates::Stochastic;
  }
  try {
    validate(c);
  } catch (const UsageError&) {
    return std::nullopt;
  }
  return c;
}

/// With other seconds than were measured, so that plans differ from trial to trial and not from run to run.
std::vector<replay::PlannedStep> planned_by_dice(Dice& dice, std::vector<replay::PlannedStep> kinds,
                                                 const std::string& strategy) {
  std::vector<replay::RecordedStep> steps;
  for (auto& [step, planner] : kinds) {
    for (plan::OpInfo& op : step.graph.ops) op.seconds = 1e-5 * static_cast<double>(dice.between(1, 100));
    step.graph.set_step_seconds(1e-4 * static_cast<double>(step.graph.ops.size()));
    steps.push_back(std::move(step));
  }
  return replay::planned(std::move(steps), strategy);
}

constexpr std::int64_t kSteps = 3;

struct Peaks {
  Bytes first = 0, later = 0;  ///< of the first step, which makes the state, and of the others
};

Peaks run_steps(Experiment& experiment, Session* session) {
  TrainingStep step(experiment);
  Peaks peaks;
  for (std::int64_t i = 0; i < kSteps; ++i) {
    testing::test_memory().reset_peak();
    const data::Batch batch = experiment.train_batch(i);
    if (session != nullptr) {
      (void)step.make_gradients(*session, batch, i, i);
    } else {
      (void)step.backward_plain(batch, i);
      (void)step.clip();
    }
    step.update(i);
    Bytes& peak = i == 0 ? peaks.first : peaks.later;
    peak = std::max(peak, testing::test_memory().stats().allocated_peak);
  }
  return peaks;
}

/// Outside of any budget, which need not have room for another copy of the weights.
std::vector<at::Tensor> copy_of_weights(Experiment& experiment) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& p : experiment.model().parameters()) weights.push_back(p.detach().clone());
  return weights;
}

constexpr int kTrials = 100;  // of each half, which run at once

int trials() {
  const char* asked = std::getenv("SNUG_TRIALS");
  return asked != nullptr ? std::clamp(std::atoi(asked), 1, kTrials) : kTrials;
}

class KnobTrials : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(KnobTrials, HoldTheirBudgetsTakeWhatWasPredictedAndChangeNothing) {
  int tried = 0;
  for (std::uint64_t seed = GetParam(); tried < trials(); ++seed) {
    Dice dice(seed);
    std::optional<Config> config = random_config(dice, std::to_string(seed));
    if (!config) continue;
    ++tried;
    std::vector<at::Tensor> plain;
    Bytes floor = 0, most = 0;
    {
      Experiment experiment(*config);
      (void)run_steps(experiment, nullptr);
      plain = copy_of_weights(experiment);
    }
    {
      Experiment experiment(*config);
      const PlannedExperiment planned = plan_experiment(experiment, Kinds::Training);
      floor = plan::Budget::for_limit(1).floor_for(replay::smallest_budget(planned.kinds));
      most = plan::Budget::for_limit(1).floor_for(replay::plan_all(planned.kinds, std::nullopt).front().unplanned_peak);
    }
    const Bytes budget = std::max(floor + (most - floor) * dice.between(0, 100) / 100, floor * 101 / 100);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << to_json(*config) << ", budget " << budget
                                      << ", floor " << floor << ", unplanned " << most);
    config->memory.budget = budget;
    try {
      Experiment experiment(*config);
      PlannedExperiment planned = plan_experiment(experiment, Kinds::Training);
      planned.kinds = planned_by_dice(dice, std::move(planned.kinds), config->memory.strategy);
      Bytes predicted = 0;
      for (const plan::MemoryPlan& plan : replay::plan_all(planned.kinds, planned.budget)) {
        predicted = std::max(predicted, plan.predicted_peak);
      }
      std::optional<Session> session(std::in_place, std::move(planned.kinds), planned.budget, testing::test_memory());
      const Peaks peaks = run_steps(experiment, &*session);
      session.reset();
      EXPECT_LE(std::max(peaks.first, peaks.later), budget);
      EXPECT_NEAR(static_cast<double>(peaks.later), static_cast<double>(predicted),
                  0.005 * static_cast<double>(predicted));
      const std::vector<at::Tensor> weights = copy_of_weights(experiment);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_TRUE(snug::testing::same_bits(weights[i], plain[i])) << i;
      }
    } catch (const std::exception& error) {  // which would not name the trial
      ADD_FAILURE() << error.what();
    }
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(SeedsFrom, KnobTrials, ::testing::Values(0, 100'000));

}  // namespace
}  // namespace snug::train
