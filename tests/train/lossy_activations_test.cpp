// memory.activations: what the command leaves to lossy codecs, what it proves of the rest, and what it measures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "snug/report/progress.h"
#include "snug/train/choose.h"
#include "snug/train/experiment.h"
#include "snug/train/gradient_error.h"
#include "snug/train/training_step.h"
#include "snug/train/verify.h"
#include "tests/base/fault.h"
#include "tests/device/test_device.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

Config with_activations(const std::string& activations) {
  Config config = two_blocks("lossy_" + activations);
  config.model.blocks = 3;
  config.model.width = 256;  // products that take longer than their results take to be encoded
  config.train.batch = 16;
  set_key(config, "memory.activations=" + activations);
  return config;
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool kCodecsAreSlow = true;  // they are instrumented, and LibTorch's operators are not: no plan may use them
#else
constexpr bool kCodecsAreSlow = false;
#endif

/// Whether a codec or a replay is quicker is measured; each time anew, until a codec is.
VerifyResult verified_lossy(Config config) {
  report::Progress silent = report::Progress::silent();
  VerifyResult result;
  for (int i = 0; i < 5 && result.lossy == 0; ++i) {
    result = verify(config, 3, 1, silent);
    EXPECT_EQ(result.different, 0) << result.first_different;
    EXPECT_EQ(result.steps, 3);
    EXPECT_LE(result.memory.mapped_peak, result.plan.budget);
  }
  return result;
}

class LossyActivations : public ::testing::Test {
 protected:
  void SetUp() override { SNUG_ONLY_ON_THE_CPU("codecs"); }
};

TEST_F(LossyActivations, ChangeGradientsByLittleAndNothingElse) {
  for (const char* activations : {"bf16", "int4"}) {
    Config config = with_activations(activations);
    set_key(config, "memory.budget=75%");
    const VerifyResult result = verified_lossy(config);
    if (kCodecsAreSlow && result.lossy == 0) GTEST_SKIP() << activations << " would take longer than replays";
    EXPECT_GT(result.lossy, 0) << activations;
    EXPECT_GT(result.gradient_error_of_all, 0) << activations;
    EXPECT_LT(result.gradient_error_of_all, activations[0] == 'b' ? 0.01 : 0.3) << activations;
    ASSERT_GT(result.gradient_error.size(), 10U);
    EXPECT_TRUE(std::ranges::is_sorted(result.gradient_error, std::ranges::greater(), &GradientError::relative));
    const auto norm = std::ranges::find(result.gradient_error, "final_norm", &GradientError::layer);
    ASSERT_NE(norm, result.gradient_error.end());
    const nlohmann::ordered_json json = to_json(result);
    EXPECT_EQ(json["lossy_bytes"], result.lossy);
    EXPECT_EQ(json["gradient_error_by_layer"].size(), result.gradient_error.size());
  }
}

TEST_F(LossyActivations, OfMicroBatchesAreTheSameWithTheRestOfThePlan) {
  Config config = with_activations("int8");
  config.train.accumulate = 2;
  config.train.batch = 32;
  set_key(config, "memory.budget=75%");
  EXPECT_GT(verified_lossy(config).lossy, 0);
}

TEST_F(LossyActivations, AreNotMeasuredWhereNoGradientsAreLeft) {
  Config config = with_activations("int8");
  config.optimizer.in_backward = true;
  config.optimizer.clip_norm = 0;
  set_key(config, "memory.budget=75%");
  const VerifyResult result = verified_lossy(config);
  if (!kCodecsAreSlow) {
    EXPECT_GT(result.lossy, 0);
  }
  EXPECT_TRUE(result.gradient_error.empty());
  EXPECT_FALSE(to_json(result).contains("gradient_error"));
}

TEST_F(LossyActivations, AreExactUnlessTheyAreAllowed) {
  Config config = with_activations("exact");
  set_key(config, "memory.budget=75%");
  report::Progress silent = report::Progress::silent();
  const VerifyResult result = verify(config, 2, 1, silent);
  EXPECT_EQ(result.lossy, 0);
  EXPECT_EQ(result.different, 0);
  EXPECT_TRUE(result.gradient_error.empty());
  EXPECT_FALSE(to_json(result).contains("gradient_error"));
}

TEST_F(LossyActivations, AreAChoiceByNameAlone) {
  const auto recorded_for = [](Config config) {
    set_key(config, "memory.budget=1GiB");
    Experiment experiment(config);
    return TrainingStep(experiment).record(experiment.train_batch(0), std::nullopt).front().graph;
  };
  EXPECT_EQ(recorded_for(with_activations("int4")).lossy, plan::Codec::Int4);
  EXPECT_EQ(recorded_for(with_activations("exact")).lossy, plan::Codec::None);
  for (const Knob* knob : allowed_knobs("bf16_activations, fp8_activations, int8_activations, int4_activations")) {
    const std::optional<Config> turned = knob->turned(with_activations("exact"));
    ASSERT_TRUE(turned) << knob->name;
    EXPECT_EQ(std::string(word(turned->memory.activations)) + "_activations", knob->name);
    EXPECT_EQ(knob->changes, Knob::Changes::Gradients);
    EXPECT_FALSE(knob->turned(with_activations("int4"))) << knob->name << " has as many bits, or more";
  }
}

TEST_F(LossyActivations, AreTakenWhereTheyAreNamedAndMakeTheStepFaster) {
  Config config = with_activations("exact");
  config.given.erase("memory.activations");
  config.train.batch = 16;
  config.model.width = 512;  // so that products take far longer than codecs
  set_key(config, "memory.budget=65%");
  set_key(config, "memory.allow=int4_activations");
  report::Progress silent = report::Progress::silent();
  Chosen chosen;
  for (int i = 0; i < 5 && chosen.config.memory.activations == Activations::Exact; ++i) {
    chosen = choose(config, silent);
    if (chosen.choices.empty()) continue;  // what is measured shows no plan that is slower
    const auto named =
        std::ranges::find(chosen.choices, "int4_activations", [](const Choice& choice) { return choice.knob->name; });
    ASSERT_NE(named, chosen.choices.end());
    EXPECT_EQ(named->taken, chosen.config.memory.activations == Activations::Int4) << named->why_not;
  }
  EXPECT_EQ(chosen.config.memory.activations, Activations::Int4);
}

TEST(LossyActivationsOf, StrategiesWithoutCodecsAreRefused) {
  Config config = two_blocks("lossy_elsewhere");
  set_key(config, "memory.budget=1GiB");
  set_key(config, "memory.activations=int4");
  config.train.device = "cuda";
  EXPECT_NO_THROW(validate(config));
  EXPECT_THROW(set_key(config, "memory.activations=int3"), UsageError);
  config.train.device = "cpu";
  config.memory.strategy = "every_block";
  EXPECT_EQ(testing::fault([&] { validate(config); }),
            "configuration: memory.activations = \"int4\", but memory.strategy = \"every_block\" leaves nothing to "
            "codecs; leave one of them out");
}

TEST(GradientErrors, AreNormsOfDifferencesByLayer) {
  GradientErrors errors;
  const at::Tensor exact = torch::ones({4}), half = torch::full({4}, 0.5);
  errors.add("a.weight", exact, exact);
  errors.add("b.c.weight", exact, half);
  errors.add("b.c.bias", exact, exact);
  errors.add("b.d.weight", torch::zeros({4}), torch::zeros({4}));
  const std::vector<GradientError> by_layer = errors.by_layer();
  ASSERT_EQ(by_layer.size(), 3U);
  EXPECT_EQ(by_layer[0].layer, "b.c");
  EXPECT_DOUBLE_EQ(by_layer[0].relative, std::sqrt(1.0 / 8));
  EXPECT_EQ(by_layer[1].relative, 0);
  const at::Tensor none = torch::full({4}, std::nan("")), infinite = torch::full({4}, INFINITY);
  errors.add("b.c.weight", infinite, none);  // a loss scale is too high: it says nothing
  EXPECT_DOUBLE_EQ(errors.by_layer()[0].relative, std::sqrt(1.0 / 8));
  EXPECT_DOUBLE_EQ(errors.all().relative, std::sqrt(1.0 / 12));
  errors.add("b.d.weight", exact, none);
  EXPECT_EQ(errors.by_layer()[0].layer, "b.d");
  EXPECT_TRUE(std::isnan(errors.by_layer()[0].relative));
  EXPECT_TRUE(std::isnan(errors.all().relative));
}

}  // namespace
}  // namespace snug::train
