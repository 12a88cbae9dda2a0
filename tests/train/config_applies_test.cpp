// When a key does something: beside which others, and in which commands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "snug/base/toml.h"
#include "snug/train/config.h"
#include "tests/base/fault.h"

namespace snug::train {
namespace {

using ::testing::HasSubstr;

/// What validate() says of a file, and of what is set after it.
std::string fault_in(std::string_view text, const std::vector<std::string>& settings = {}) {
  return snug::testing::fault([&] {
    Config config = config_from_json(parse_toml(text, "run.toml"), "run.toml");
    for (const std::string& setting : settings) set_key(config, setting);
    validate(config);
  });
}

TEST(Applies, WhatIsTurnedOffByNameDoesNotExcuseWhatAnotherKeyDecides) {
  const std::string lora = "[model]\nkind = \"llama\"\npath = \"m.gguf\"\n[lora]\nrank = 8\nalpha = 64\n";
  EXPECT_EQ(fault_in(lora, {"lora.rank=0"}), "none");
  EXPECT_THAT(fault_in(lora, {"lora.rank=0", "lora.adapter=a"}), HasSubstr("lora.alpha = 64.0 does nothing here"));
}

TEST(Applies, PrecisionUpdatesAndSchedulesApplyWhereTheyDoSomething) {
  const std::string scaled = "[precision]\ncompute = \"fp16\"\n";
  EXPECT_EQ(fault_in(scaled + "init_scale = 8.0\ngrowth_interval = 5\n"), "none");
  EXPECT_THAT(fault_in("[precision]\ninit_scale = 8.0"), HasSubstr("applies with precision.compute = \"fp16\""));
  EXPECT_THAT(fault_in("[precision]\nupdates = \"stochastic\""), HasSubstr("applies to weights in bf16 that train"));
  const std::string bf16 =
      "[model]\nkind = \"llama\"\npath = \"m\"\nweights = \"bf16\"\n[precision]\nupdates = \"stochastic\"\n";
  EXPECT_EQ(fault_in(bf16), "none");
  EXPECT_THAT(fault_in(bf16 + "[lora]\nrank = 4"), HasSubstr("applies to weights in bf16 that train"));
  EXPECT_THAT(fault_in("[optimizer]\ndecay_steps = 5"), HasSubstr("applies with optimizer.schedule = \"wsd\""));
  EXPECT_EQ(fault_in("[optimizer]\nschedule = \"wsd\"\ndecay_steps = 5"), "none");
  EXPECT_THAT(fault_in("[optimizer]\nschedule = \"constant\"\nfinal_fraction = 0.5"), HasSubstr("not \"constant\""));
  EXPECT_THAT(fault_in("[optimizer]\nclip_value = 1\nclip_norm = 1"), HasSubstr("optimizer.clip_norm = 1"));
  EXPECT_EQ(fault_in("[optimizer]\nclip_value = 1"), "none") << "a norm by default";
  EXPECT_THAT(fault_in("[model]\nloss_tile = 8"), HasSubstr("applies with a tiled model.loss"));
  EXPECT_EQ(fault_in("[model]\nloss_tile = 8\nloss = \"tiled\""), "none");
  const std::string products = "[model]\nattention = \"products\"\n";
  EXPECT_EQ(fault_in(products + "dropout = 0.1"), "none") << "not of attention";
  EXPECT_THAT(fault_in(products + "kind = \"gpt2\"\ndropout = 0.1"), HasSubstr("applies to attention without dropout"));
  EXPECT_EQ(fault_in(products + "kind = \"gpt2\""), "none");
  EXPECT_THAT(fault_in(products + "[precision]\ncompute = \"fp16\""), HasSubstr("not in fp16"));
  EXPECT_THAT(fault_in(products + "[data]\npacking = \"documents\""), HasSubstr("masks"));
  EXPECT_THAT(fault_in("[optimizer]\nlion_beta2 = 0.9"), HasSubstr("with optimizer.kind = \"lion\""));
  EXPECT_EQ(fault_in("[optimizer]\nkind = \"muon\"\nmuon_except = \"a, b\""), "none");
  EXPECT_THAT(fault_in("[optimizer]\ngroups = \"bias weight_decay=0\""), HasSubstr("optimizer.groups: \"bias"));
}

TEST(Applies, TheBestStatesAreThoseThatWereValidated) {
  const std::string folder = "[output]\nfolder = \"out\"\n";
  const auto states = [&](int every, int validate_every) {
    return fault_in(folder + "[state]\nbest = 2\nevery = " + std::to_string(every) +
                    "\n[train]\nvalidate_every = " + std::to_string(validate_every));
  };
  EXPECT_EQ(states(200, 100), "none");
  EXPECT_EQ(states(100, 100), "none");
  EXPECT_THAT(states(100, 0), HasSubstr("state.best = 2 does nothing here"));
  EXPECT_THAT(states(100, 150), HasSubstr("a multiple of train.validate_every"));
  EXPECT_EQ(fault_in(folder + "[state]\nevery = 100"), "none") << "there is a default";
  EXPECT_EQ(fault_in(folder + "[state]\nbest = 0"), "none") << "which asks for nothing";
}

TEST(Applies, OptimizerStateIsStreamedAloneOrWithItsWeights) {
  const auto kept = [](const std::string& more) {
    return fault_in("[memory]\nbudget = \"1GiB\"\nhost_budget = \"1GiB\"\noptimizer = \"streamed\"\n" + more);
  };
  EXPECT_EQ(kept(""), "none");
  EXPECT_THAT(kept("weights = \"streamed\""), HasSubstr("memory.optimizer = \"streamed\" does nothing here"));
  EXPECT_THAT(fault_in("[memory]\nbudget = \"1GiB\"\noptimizer = \"streamed\""), HasSubstr("nowhere to stream from"));
}

TEST(Applies, KeysOfRunsAreMarked) {
  std::set<std::string> of_runs;
  for (const KeyHelp& key : config_keys()) {
    if (key.commands == Commands::Runs) of_runs.insert(key.key);
  }
  EXPECT_EQ(of_runs, (std::set<std::string>{"memory.check_first_step",
                                            "memory.verify_replay_by",
                                            "memory.verify_replay_every",
                                            "monitor.growth_steps",
                                            "monitor.headroom",
                                            "monitor.interval",
                                            "output.folder",
                                            "parallel.context",
                                            "parallel.context_by",
                                            "parallel.partition_activations",
                                            "parallel.pipeline",
                                            "parallel.reduce",
                                            "parallel.schedule",
                                            "parallel.sequence_parallel",
                                            "parallel.shard",
                                            "parallel.shard_degree",
                                            "parallel.tensor",
                                            "parallel.timeout",
                                            "state.best",
                                            "state.every",
                                            "state.interval",
                                            "state.last",
                                            "state.write",
                                            "train.detect_anomaly",
                                            "train.validate_every"}));
}

TEST(Config, IsAnotherOneWithAnyKeyAnother) {
  int others = 0;
  for (const KeyHelp& key : config_keys()) {
    for (const std::string value : {"true",       "false",    "7",         "0.5",        "else",
                                    "bf16",       "packed",   "documents", "plain",      "sgd",
                                    "gpt2",       "values",   "wait",      "none",       "alpha/sqrt(rank)",
                                    "50%",        "linear",   "inf",       "stochastic", "products",
                                    "tiled_loss", "-0.5",     "0.25",      "cuda",       "*: weight_decay=0",
                                    "gradients",  "streamed", "f_then_b",  "ring"}) {
      Config config;
      try {
        set_key(config, key.key + "=" + value);
      } catch (const UsageError&) {
        continue;
      }
      if (to_json(config) == to_json(Config{})) continue;
      EXPECT_NE(config, Config{}) << key.key;
      ++others;
      break;
    }
  }
  EXPECT_EQ(others, static_cast<int>(config_keys().size()));
}

TEST(ModelFamilies, SayForThemselvesWhichKeysGoTogether) {
  for (const ModelFamily* family : model_families()) {
    Config config;
    config.model.kind = family->name;
    config.model.width = 100;
    const std::string said = snug::testing::fault([&] { validate(config); });
    EXPECT_THAT(said, HasSubstr(family->check != nullptr ? "use 96 or 102" : "none"));
  }
}

}  // namespace
}  // namespace snug::train
