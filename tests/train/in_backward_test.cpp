// Updates in the backward pass: the same bits as behind it, without all gradients at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/plan/run/presets.h"
#include "snug/report/progress.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/training_step.h"
#include "snug/train/verify.h"
#include "tests/base/fault.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Config config_of(const std::string& name, bool in_backward) {
  Config config = two_blocks("in_backward/" + name);
  config.model.width = 128;
  config.optimizer.clip_norm = 0;
  config.optimizer.in_backward = in_backward;
  return config;
}

/// All that a few steps leave behind, under a plan where a budget is configured.
std::vector<at::Tensor> trained(const Config& config) {
  Experiment experiment(config);
  TrainingStep step(experiment);
  std::optional<Session> session = plan_session(experiment, Kinds::Training);
  std::vector<at::Tensor> left;
  for (int i = 0; i < 3; ++i) {
    const auto made = step.make_gradients(*session, experiment.train_batch(i), i, i);
    left.push_back(at::tensor(made.loss));
    EXPECT_GT(made.norm, 0);
    step.update(i);
    EXPECT_TRUE(step.whole());
    EXPECT_EQ(step.last().divergence, "");
  }
  session.reset();  // copies are outside of its budget
  for (const at::Tensor& p : experiment.optimizer().parameters()) {
    EXPECT_FALSE(p.grad().defined());
    left.push_back(p.detach().clone());
  }
  for (const at::Tensor& t : experiment.optimizer().state()) left.push_back(t.clone());
  return left;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << what << " " << i;
}

TEST(InBackward, HasTheBitsOfAnUpdateBehindWithEveryOptimizer) {
  for (const optim::OptimizerKind* kind : optim::optimizer_kinds()) {
    const std::string name(kind->name);
    if (name == "adamw_8bit" && !testing::test_device().is_cpu()) continue;  // which only the CPU has
    Config behind = config_of(name, false), within = config_of(name, true);
    behind.optimizer.kind = within.optimizer.kind = name;
    within.memory.budget = plan::Percent{80};
    expect_equal(trained(behind), trained(within), name);
  }
}

TEST(InBackward, IsRightWithMicroBatchesAndClippedValuesAndWeightsInBf16) {
  for (const std::int64_t parts : {1, 4}) {
    for (const double clip : {0.0, 1e-3}) {
      Config behind = config_of("parts", false), within = config_of("parts", true);
      for (Config* config : {&behind, &within}) {
        config->train.accumulate = parts;
        config->optimizer.clip_value = clip;
        config->precision = {.compute = Compute::Bf16, .weights = TrainedWeights::Bf16};
      }
      expect_equal(trained(behind), trained(within), std::to_string(parts));
    }
  }
}

TEST(InBackward, NeverHasAllGradientsAndItsPlanKnowsIt) {
  Config config = config_of("peak", true);
  Experiment within(config);
  const plan::StepGraph graph = TrainingStep(within).record(within.train_batch(0), std::nullopt).front().graph;
  for (const at::Tensor& p : within.optimizer().parameters()) EXPECT_FALSE(p.grad().defined());
  Experiment behind(config_of("peak", false));
  const auto recorded = TrainingStep(behind).record(behind.train_batch(0), std::nullopt);
  Bytes gradients = 0, largest = 0;
  for (const at::Tensor& p : within.optimizer().parameters()) {
    gradients += testing::test_memory().rounded(static_cast<Bytes>(p.nbytes()));
    largest = std::max(largest, testing::test_memory().rounded(static_cast<Bytes>(p.nbytes())));
  }
  const Bytes with = plan::Planner(graph, "optimal").floor(graph);
  const Bytes without = plan::Planner(recorded.front().graph, "optimal").floor(recorded.front().graph);
  EXPECT_LE(with, without - gradients / 2);

  config.memory.budget = plan::Percent{90};
  Experiment experiment(config);
  TrainingStep step(experiment);
  Session session = plan_session(experiment, Kinds::Training);
  for (int i = 0; i < 3; ++i) {
    testing::test_memory().reset_peak();
    step.make_gradients(session, experiment.train_batch(0), i, i);
    step.update(i);
    EXPECT_NEAR(static_cast<double>(testing::test_memory().stats().allocated_peak) /
                    static_cast<double>(session.plan().predicted_peak),
                1, 0.005);
    EXPECT_LE(testing::test_memory().stats().mapped_peak, session.plan().budget);
    EXPECT_LE(testing::test_memory().stats().at_peak_by_tag[static_cast<std::size_t>(memory::Tag::Gradients)],
              2 * largest);
    EXPECT_EQ(session.last_step().evictions, 0);
  }
}

TEST(InBackward, VerifiesAsAnyStep) {
  Config config = config_of("verify", true);
  config.memory.budget = plan::Percent{80};
  report::Progress silent = report::Progress::silent();
  const VerifyResult result = verify(config, 3, 1, silent);
  EXPECT_EQ(result.different, 0) << result.first_different;
  EXPECT_GT(result.tensors, 0);
}

TEST(InBackward, SaysWhetherTheWeightsAreWholeWhenItFails) {
  Experiment experiment(config_of("fails", true));
  TrainingStep step(experiment);
  Session session = plan_session(experiment, Kinds::Training);
  at::Tensor last = experiment.optimizer().parameters().back(), first = experiment.optimizer().parameters().front();
  const at::Tensor before = last.detach().clone(), kept = first.detach().clone();
  {
    const at::NoGradGuard no_grad;
    first[0][0] = std::numeric_limits<float>::quiet_NaN();
    first[1].copy_(first[0]);
  }
  data::Batch batch = experiment.train_batch(0);
  batch.input = at::zeros_like(batch.input);  // the row that is no number
  EXPECT_THAT([&] { step.make_gradients(session, batch, 0, 0); },
              ThrowsMessage<Error>(HasSubstr("the loss of step 1 is nan")));
  EXPECT_TRUE(step.whole()) << "nothing was updated yet";
  EXPECT_TRUE(at::equal(last.detach(), before));
  {
    const at::NoGradGuard no_grad;
    first.copy_(kept);
  }
  first.register_hook([](const at::Tensor& gradient) { return gradient * std::numeric_limits<float>::infinity(); });
  EXPECT_THAT([&] { step.make_gradients(session, batch, 0, 0); },
              ThrowsMessage<Error>(HasSubstr("others have been updated with theirs: resume from the last state")));
  EXPECT_FALSE(step.whole());
}

TEST(InBackward, IsRefusedWhereAnUpdateNeedsAllGradients) {
  Config config = config_of("refused", true);
  config.optimizer.clip_norm = 0.5;
  EXPECT_THAT(snug::testing::fault([&] { validate(config); }),
              HasSubstr("optimizer.clip_norm = 0.5 scales every gradient by the norm of all"));
  config.optimizer.clip_norm = 0;
  config.optimizer.clip_value = 1;
  EXPECT_EQ(snug::testing::fault([&] { validate(config); }), "none");
  config.precision.compute = Compute::Fp16;
  EXPECT_THAT(snug::testing::fault([&] { validate(config); }),
              HasSubstr("a step is left out when any gradient overflows"));
}

}  // namespace
}  // namespace snug::train
