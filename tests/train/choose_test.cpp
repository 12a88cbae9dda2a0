// What is changed to fit a budget, where it may be.
#include "snug/train/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "snug/plan/does_not_fit.h"
#include "snug/train/config.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/trainer.h"
#include "tests/base/fault.h"
#include "tests/train/two_blocks.h"

namespace snug::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

report::Progress& silent() {
  static report::Progress progress = report::Progress::silent();
  return progress;
}

/// Its logits are most of what it takes.
Config with_large_vocabulary(const std::string& name) {
  Config config = two_blocks("choose/" + name);
  config.model.vocabulary = 8192;
  config.model.sequence = 128;
  config.train.batch = 16;
  return config;
}

Bytes floor_of(const Config& config) {
  Experiment experiment(config);
  return replay::smallest_budget(plan_experiment(experiment, Kinds::Training).kinds);
}

/// What the plain loss has no room in, and the tiled one has.
Bytes between(Config config) {
  const Bytes plain = floor_of(config);
  config.model.loss = LossKind::Tiled;
  const Bytes tiled = floor_of(config);
  EXPECT_LT(tiled, plain);
  return (plain + 3 * tiled) / 4;
}

std::vector<std::string> taken(const Chosen& chosen) {
  std::vector<std::string> names;
  for (const Choice& choice : chosen.choices) {
    if (choice.taken) names.emplace_back(choice.knob->name);
  }
  return names;
}

TEST(Knobs, AreTurnedWhereTheyDoSomething) {
  const auto turned = [](const char* name, const Config& config) {
    return allowed_knobs(name).front()->turned(config);
  };
  Config config = two_blocks("choose/knobs");
  EXPECT_EQ(turned("micro_batch", config)->train.accumulate, 2);
  config.train.batch = 3;
  EXPECT_EQ(turned("micro_batch", config), std::nullopt);
  EXPECT_EQ(turned("in_backward", config), std::nullopt) << "the norm of all is clipped";
  config.optimizer.clip_norm = 0;
  EXPECT_TRUE(turned("in_backward", config)->optimizer.in_backward);
  config.precision.compute = Compute::Fp16;
  EXPECT_EQ(turned("in_backward", config), std::nullopt);
  EXPECT_EQ(turned("loss_tile", config), std::nullopt) << "it is plain";
  config = *turned("tiled_loss", config);
  EXPECT_EQ(config.model.loss, LossKind::Tiled);
  EXPECT_EQ(turned("tiled_loss", config), std::nullopt);
  EXPECT_EQ(turned("loss_tile", config)->model.loss_tile, 8);
  EXPECT_EQ(turned("adam8bit", config)->optimizer.kind, "adamw_8bit");
  EXPECT_EQ(turned("attention", config), std::nullopt) << "in fp16";
  config.precision.compute = Compute::Bf16;
  config = *turned("attention", config);
  EXPECT_EQ(config.model.attention, models::AttentionMethod::Products);
  EXPECT_EQ(turned("attention", config), std::nullopt);
  config.optimizer.kind = "sgd";
  EXPECT_EQ(turned("adam8bit", config), std::nullopt);
  EXPECT_EQ(turned("mlp_tile", config), std::nullopt) << "a quarter of the tokens would be too few";
  config.train.batch = 8;
  EXPECT_EQ(turned("mlp_tile", config)->model.mlp_tile, 2 * config.model.sequence);
  config.model.mlp_tile = 130;
  EXPECT_EQ(turned("mlp_tile", config)->model.mlp_tile, 65) << "and then half of that";
  config.model.mlp_tile = 126;
  EXPECT_EQ(turned("mlp_tile", config), std::nullopt) << "half would be too few";
  config.model.mlp_tile = 0;
  config.lora.rank = 2;
  config.lora.dropout = 0.1;
  EXPECT_EQ(turned("mlp_tile", config), std::nullopt) << "other masks";
  config.lora.dropout = 0;
  EXPECT_NE(turned("mlp_tile", config), std::nullopt);
  config.lora.adapter = "adapter";
  EXPECT_EQ(turned("mlp_tile", config), std::nullopt) << "it may have dropout";
}

TEST(Knobs, ThatAreNotKnownAreRefused) {
  EXPECT_EQ(allowed_knobs(" tiled_loss , adam8bit,").size(), 2U);
  EXPECT_EQ(allowed_knobs("").size(), 0U);
  EXPECT_EQ(snug::testing::fault([] { (void)allowed_knobs("tiled_loss,,adam8bit"); }),
            "memory.allow = \"tiled_loss,,adam8bit\" has a comma with no name beside it");
  EXPECT_EQ(snug::testing::fault([] { (void)allowed_knobs("tiled_los"); }),
            "memory.allow has \"tiled_los\", which is not known; did you mean \"tiled_loss\"? it takes in_backward, "
            "streamed_weights, "
            "tiled_loss, loss_tile, mlp_tile, attention, micro_batch, bf16_activations, fp8_activations, "
            "int8_activations, int4_activations, adam8bit");
}

TEST(Choose, TakesWhatMakesTheStepFit) {
  Config config = with_large_vocabulary("fits");
  config.memory.budget = between(config);
  config.train.validation_batches = 0;
  EXPECT_TRUE(choose(config, silent()).choices.empty()) << "nothing is allowed";
  config.memory.allow = "tiled_loss";
  const Chosen chosen = choose(config, silent());
  EXPECT_EQ(taken(chosen), std::vector<std::string>{"tiled_loss"});
  EXPECT_FALSE(chosen.choices.front().before.seconds);
  EXPECT_TRUE(chosen.choices.front().after.seconds);
  EXPECT_LT(chosen.choices.front().after.floor, chosen.choices.front().before.floor);
  EXPECT_EQ(chosen.config.model.loss, LossKind::Tiled);
  Experiment experiment(chosen.config);
  EXPECT_LE(plan_session(experiment, Kinds::Training).plan().predicted_peak, std::get<Bytes>(*config.memory.budget));
  const auto json = to_json(chosen.choices);
  EXPECT_EQ(json[0]["name"], "tiled_loss");
  EXPECT_EQ(json[0]["bitwise"], false);
  EXPECT_EQ(json[0]["taken"], true);
  EXPECT_GT(json[0]["saved_bytes"].get<Bytes>(), 0);
  EXPECT_THAT(render(chosen.choices), HasSubstr("taken"));
}

TEST(Choose, LeavesAStepAloneThatIsAsFastWithinTheBudget) {
  Config config = with_large_vocabulary("alone");
  config.memory.allow = "tiled_loss, micro_batch, adam8bit";
  config.memory.budget = 1_GiB;
  const Chosen chosen = choose(config, silent());
  EXPECT_TRUE(chosen.choices.empty());
  EXPECT_EQ(chosen.config, config);
  config.memory.budget.reset();
  EXPECT_TRUE(choose(config, silent()).choices.empty()) << "without a budget there is nothing to fit";
}

TEST(Choose, WhatChangesNoBitIsFreeToUse) {
  Config config = two_blocks("choose/free");
  config.model.width = 256;
  config.train.batch = 1;
  config.train.validation_batches = 0;
  config.optimizer.clip_norm = 0;
  const Bytes behind = floor_of(config);
  config.optimizer.in_backward = true;
  const Bytes within = floor_of(config);
  config.optimizer.in_backward = false;
  ASSERT_LT(within, behind - 1_MiB);
  config.memory.budget = (within + behind) / 2;
  const Chosen chosen = choose(config, silent());
  EXPECT_EQ(taken(chosen), std::vector<std::string>{"in_backward"});
  EXPECT_TRUE(chosen.config.optimizer.in_backward);
}

TEST(Choose, ARefusalNamesTheCheapestChange) {
  Config config = with_large_vocabulary("refusal");
  config.memory.budget = between(config);
  config.train.steps = 2;
  config.train.validation_batches = 0;
  try {
    (void)train(config, silent());
    FAIL() << "no error";
  } catch (const DoesNotFit& error) {
    EXPECT_THAT(error.what(), HasSubstr("with memory.allow = \""));
    EXPECT_THAT(error.what(), HasSubstr("it fits"));
    EXPECT_EQ(error.exit_code(), 2);
  }
  config.memory.budget = 1_MiB;
  try {
    (void)train(config, silent());
    FAIL() << "no error";
  } catch (const DoesNotFit& error) {
    EXPECT_THAT(error.what(), Not(HasSubstr("memory.allow")));
  }
}

TEST(Choose, AResumedRunHasTheChoicesThatItHad) {
  Config config = with_large_vocabulary("resumed");
  config.memory.budget = between(config);
  config.memory.allow = "tiled_loss";
  config.train.steps = 2;
  config.train.validation_batches = 0;
  config.output.folder = snug::testing::scratch("choose/run");
  EXPECT_EQ(train(config, silent()).steps, 2);
  config.train.steps = 3;
  config.memory.budget = 1_GiB;  // in which nothing would be chosen
  const TrainResult result = train(config, silent(), {.plan = {}, .start = Start::Resume, .before = {}, .after = {}});
  EXPECT_EQ(result.resumed_from, 2);
  EXPECT_EQ(result.steps, 3);
}

TEST(Choose, AResumedRunHasTheChoicesThatItHadWhereItsFileNamesTheKeys) {
  Config before = with_large_vocabulary("given"), config = before;
  config.memory.budget = before.memory.budget = 1_GiB;
  config.memory.allow = before.memory.allow = "tiled_loss, adam8bit, micro_batch";
  set_key(config, "model.loss=plain");
  set_key(config, "optimizer.kind=adamw");
  set_key(config, "train.accumulate=1");
  before.model.loss = LossKind::Tiled;
  before.optimizer.kind = "adamw_8bit";
  before.train.accumulate = 2;
  const Config adopted = adopt_choices(config, before);
  EXPECT_EQ(adopted.model.loss, LossKind::Tiled);
  EXPECT_EQ(adopted.optimizer.kind, "adamw_8bit");
  EXPECT_EQ(adopted.train.accumulate, 2);
  // What no choice leads to is somebody's wish, and refused later.
  set_key(config, "optimizer.kind=sgd");
  EXPECT_EQ(adopt_choices(config, before).optimizer.kind, "sgd");
}

TEST(Choose, ARunThatGoesOnLeavesWhatChangesNoBitWhereItDoesNotApplyAnyMore) {
  Config config = with_large_vocabulary("anomaly");
  config.memory.budget = 1_GiB;
  config.memory.allow = "in_backward";
  config.optimizer.clip_norm = 0;
  Config before = config;
  before.optimizer.in_backward = true;
  EXPECT_TRUE(adopt_choices(config, before).optimizer.in_backward);
  config.train.detect_anomaly = true;
  EXPECT_FALSE(adopt_choices(config, before).optimizer.in_backward);
  config.train.detect_anomaly = false;
  config.optimizer.clip_norm = 1;
  EXPECT_FALSE(adopt_choices(config, before).optimizer.in_backward);
}

TEST(Choose, SaysNothingOfWhatNobodyHasNamed) {
  Config config = with_large_vocabulary("unnamed");
  config.train.validation_batches = 0;
  config.optimizer.clip_norm = 0;  // so that in_backward is tried, too, which needs no name
  Config in_parts = config, in_backward = config;
  in_parts.train.accumulate = 2;
  in_backward.optimizer.in_backward = true;
  const Bytes fits = floor_of(in_parts), does_not = std::min(floor_of(config), floor_of(in_backward));
  ASSERT_LT(fits, does_not);
  config.memory.budget = (fits + does_not) / 2;
  config.memory.allow = "micro_batch";
  const Chosen chosen = choose(config, silent());
  EXPECT_EQ(taken(chosen), std::vector<std::string>{"micro_batch"});
  for (const Choice& choice : chosen.choices) EXPECT_THAT(choice.why_not, Not(HasSubstr("changes nothing here")));
}

TEST(Choose, SaysWhichNamesChangeNothing) {
  Config config = with_large_vocabulary("nothing");
  config.memory.budget = 1_GiB;
  config.memory.allow = "in_backward, adam8bit";
  config.optimizer.clip_norm = 1;
  config.optimizer.kind = "sgd";
  const Chosen chosen = choose(config, silent());
  ASSERT_EQ(chosen.choices.size(), 2U);
  EXPECT_EQ(chosen.config.optimizer, config.optimizer);
  EXPECT_THAT(chosen.choices[0].why_not, HasSubstr("it changes nothing here: optimizer.clip_norm = 1 scales"));
  EXPECT_THAT(chosen.choices[1].why_not, HasSubstr("it needs optimizer.kind = \"adamw\""));
  EXPECT_TRUE(to_json(chosen.choices)[0]["saved_bytes"].is_null());
}

}  // namespace
}  // namespace snug::train
