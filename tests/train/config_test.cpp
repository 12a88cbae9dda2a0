#include "snug/train/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/toml.h"

namespace snug::train {
namespace {

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

Config from_toml(std::string_view text) { return config_from_json(parse_toml(text, "run.toml"), "run.toml"); }
std::string mistake_in(std::string_view text) {
  return message_of([&] { from_toml(text); });
}
std::string mistake_of_set(std::string_view assignment) {
  Config config;
  const std::string message = message_of([&] { set_key(config, assignment); });
  EXPECT_EQ(config, Config{}) << "a refused assignment must change nothing";
  return message;
}

TEST(Config, DefaultsAreValidAndStandForAnEmptyFile) {
  EXPECT_EQ(from_toml(""), Config{});
  EXPECT_NO_THROW(validate(Config{}));
}

TEST(Config, ReadsKeysAndKeepsTheOtherDefaults) {
  const Config config = from_toml(
      "[model]\nwidth = 64\nheads = 4\n[memory]\nbudget = \"60%\"\n[precision]\ncompute = \"bf16\"\n"
      "[train]\ndetect_anomaly = true\n");
  Config expected;
  expected.model.width = 64;
  expected.model.heads = 4;
  expected.memory.budget = plan::Percent{60};
  expected.precision.compute = Compute::Bf16;
  expected.train.detect_anomaly = true;
  EXPECT_EQ(config, expected);
}

TEST(Config, TakesAnIntegerForANumberButNotTheOtherWay) {
  EXPECT_EQ(from_toml("[optimizer]\nclip_norm = 2").optimizer.clip_norm, 2.0);
  EXPECT_EQ(mistake_in("[train]\nsteps = 2.0"), "run.toml: train.steps must be of type integer, but is 2.0 (number)");
}

TEST(Config, ComesBackEqualFromItsJson) {
  Config config;
  config.train.seed = std::numeric_limits<std::int64_t>::max();
  config.optimizer.own.set("epsilon", 1.0000000000000002e-8);
  config.data.path = "a \"quoted\" påth";
  EXPECT_EQ(config_from_json(to_json(config), "json"), config);
}

TEST(Config, NamesTheNearestSectionAndKey) {
  EXPECT_NE(mistake_in("[trian]\nsteps = 1").find("run.toml: unknown section \"trian\"; did you mean \"train\"?"),
            std::string::npos);
  EXPECT_NE(mistake_in("[train]\nstpes = 1")
                .find("run.toml: unknown key \"stpes\" in section \"train\"; did you mean \"steps\"?"),
            std::string::npos);
  EXPECT_NE(mistake_in("[train]\nlearning_rate = 1").find("did you mean \"optimizer.learning_rate\"?"),
            std::string::npos);
  EXPECT_NE(mistake_in("[qqqqqqqqqqqq]").find("the sections are model, lora, data, train, optimizer"),
            std::string::npos);
}

TEST(Config, SaysWhichTypeAKeyNeedsAndWhatItGot) {
  EXPECT_EQ(mistake_in("[train]\nsteps = \"many\""),
            "run.toml: train.steps must be of type integer, but is \"many\" (string)");
  EXPECT_EQ(mistake_in("[model]\nkind = 3"),
            "run.toml: model.kind must be of type string, but is 3 (number); write \"3\"");
  EXPECT_EQ(mistake_in("[model]\nwidth = [1]"),
            "run.toml: model.width must be of type integer, but is [1] (a table or list)");
  EXPECT_NE(mistake_in("train = 3").find("\"train\" is a section, but is set to 3"), std::string::npos);
  EXPECT_NE(message_of([] { config_from_json(nlohmann::ordered_json::array(), "x.json"); }).find("table of sections"),
            std::string::npos);
}

TEST(Config, HoldsKeysToTheirRules) {
  EXPECT_EQ(mistake_in("[train]\nbatch = 0"), "run.toml: train.batch is 0; it must be at least 1 and at most 1048576");
  EXPECT_EQ(mistake_in("[model]\ndropout = 1"),
            "run.toml: model.dropout is 1.0; it must be at least 0 and less than 1");
  EXPECT_EQ(mistake_in("[optimizer]\nlearning_rate = nan"),
            "run.toml: optimizer.learning_rate is nan; it must be a finite number, more than 0");
  EXPECT_EQ(mistake_in("[optimizer]\nclip_norm = inf"),
            "run.toml: optimizer.clip_norm is inf; it must be a finite number, at least 0");
  EXPECT_EQ(mistake_in("[memory]\nstrategy = \"optimum\"")
                .find("run.toml: memory.strategy: strategy: unknown strategy "
                      "\"optimum\"; did you mean \"optimal\"?"),
            0U);
  EXPECT_EQ(mistake_in("[memory]\nstrategy = \"revolve(0)\""),
            "run.toml: memory.strategy: strategy: revolve takes one whole number from 1 on, as in revolve(4)");
  EXPECT_NE(mistake_in("[memory]\nbudget = \"120%\"").find("run.toml: memory.budget: budget: \"120%\""),
            std::string::npos);
}

TEST(SetKey, SetsEveryTypeWithoutQuotes) {
  Config config;
  set_key(config, "train.steps=7");
  set_key(config, " optimizer.learning_rate = 1e-3 ");
  set_key(config, "memory.budget=400MiB");
  set_key(config, "train.detect_anomaly=true");
  set_key(config, "data.path=a=b.txt");
  EXPECT_EQ(config.train.steps, 7);
  EXPECT_EQ(config.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(config.memory.budget, plan::BudgetRequest(400_MiB));
  EXPECT_TRUE(config.train.detect_anomaly);
  EXPECT_EQ(config.data.path, "a=b.txt");
}

TEST(SetKey, TakesWhatLooksLikeANumberAsTextWhereTextIsWanted) {
  Config config;
  set_key(config, "output.folder=2024");
  set_key(config, "memory.budget=1e9");
  EXPECT_EQ(config.output.folder, "2024");
  EXPECT_EQ(config.memory.budget, plan::BudgetRequest(1'000'000'000));
  set_key(config, "memory.budget=");
  EXPECT_EQ(config.memory.budget, std::nullopt);
}

TEST(SetKey, RefusesWhatAFileCouldNotSay) {
  EXPECT_EQ(mistake_of_set("train.steps"),
            "--set: \"train.steps\" is not section.key=value; write it as in train.steps=100");
  EXPECT_NE(mistake_of_set("steps=5").find("is not section.key=value"), std::string::npos);
  EXPECT_NE(mistake_of_set("train.stepz=5").find("--set: unknown key \"stepz\""), std::string::npos);
  EXPECT_NE(mistake_of_set("trains.steps=5").find("did you mean \"train\"?"), std::string::npos);
  EXPECT_EQ(mistake_of_set("train.steps=many"), "--set: train.steps must be of type integer, but is \"many\" (string)");
  EXPECT_NE(mistake_of_set("train.steps=0").find("at least 1"), std::string::npos);
  EXPECT_NE(mistake_of_set("data.path=\"open").find("is not a valid TOML value"), std::string::npos);
}

TEST(Validate, ComparesKeysWithEachOther) {
  Config config;
  config.model.width = 100;
  EXPECT_EQ(message_of([&] { validate(config); }),
            "configuration: model.width = 100 is not divisible by model.heads = 6; use 96 or 102");
  config = Config{};
  config.model.vocabulary = 100;
  EXPECT_NE(message_of([&] { validate(config); }).find("model.vocabulary = 100 is too small"), std::string::npos);
  config.data.path = "characters.bin";
  EXPECT_NO_THROW(validate(config)) << "whose ids are looked at when it is opened";
  config = Config{};
  config.train.validate_every = 5;
  config.train.validation_batches = 0;
  EXPECT_NE(message_of([&] { validate(config); }).find("train.validation_batches = 0"), std::string::npos);
}

TEST(Config, RefusesSettingsThatWouldDoNothing) {
  const auto message = [](const auto& change) {
    Config config;
    change(config);
    return message_of([&] { validate(config); });
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(message([](Config& c) { c.state.every = 5; }), "output.folder is empty"));
  EXPECT_EQ(message([](Config& c) { c.data.packing = Packing::Documents; }), "no error")
      << "every decoder has rows of documents";
  EXPECT_TRUE(has(message([](Config& c) { c.model.path = "x.gguf"; }), "model.kind is \"gpt\""));
  EXPECT_TRUE(has(message([](Config& c) { c.model.weights = BaseWeights::Packed; }), "for pretrained models"));
  const auto llama = [&](const auto& change) {
    return message([&](Config& c) {
      c.model.kind = "llama";
      c.model.path = "x.gguf";
      change(c);
    });
  };
  EXPECT_EQ(llama([](Config&) {}), "no error");
  EXPECT_TRUE(has(llama([](Config& c) { c.model.own.set("dropout", 0.1); }), "see lora.dropout"));
  EXPECT_TRUE(has(llama([](Config& c) {
                    c.data.packing = Packing::Documents;
                    c.train.validate_every = 2;
                  }),
                  "no validation split"));
}

/// What validate() says of a file, and of what is set after it.
std::string refusal(std::string_view text, const std::vector<std::string>& settings = {}) {
  return message_of([&] {
    Config config = from_toml(text);
    for (const std::string& setting : settings) set_key(config, setting);
    validate(config);
  });
}

TEST(Config, RefusesKeysThatDoNothingNamingKeyValueAndWhenTheyApply) {
  const std::string gpt = "[model]\nkind = \"gpt\"\n", pretrained = "[model]\nkind = \"llama\"\npath = \"m.gguf\"\n";
  EXPECT_EQ(refusal(gpt + "key_heads = 2"),
            "configuration: model.key_heads = 2 does nothing here: it applies with model.kind = \"llama\" and no "
            "model.path, whose files decide; leave it out");
  const auto refused = [&](const std::string& text, const std::string& what) {
    const std::string said = refusal(text);
    EXPECT_NE(said.find("configuration: " + what + " does nothing here: it applies "), std::string::npos) << said;
  };
  refused(gpt + "inner_width = 64", "model.inner_width = 64");
  for (const std::string key : {"blocks", "width", "heads", "vocabulary", "inner_width", "key_heads"}) {
    refused(pretrained + key + " = 256", "model." + key + " = 256");
  }
  const std::string adapter = pretrained + "[lora]\nadapter = \"a\"\n";
  refused(adapter + "rank = 4", "lora.rank = 4");
  refused("[model]\nkind = \"llama\"\n[lora]\nrank = 4", "lora.rank = 4");
  refused(adapter + "alpha = 8", "lora.alpha = 8.0");
  refused(pretrained + "[lora]\ntargets = \"all-linear\"", "lora.targets = \"all-linear\"");
  refused(pretrained + "[lora]\nscale = \"alpha/sqrt(rank)\"", "lora.scale = \"alpha/sqrt(rank)\"");
  const std::string documents = pretrained + "[data]\npacking = \"documents\"\n";
  refused(documents + "validation_fraction = 0.1", "data.validation_fraction = 0.1");
  refused(documents + "[train]\nvalidation_batches = 2", "train.validation_batches = 2");
  refused(documents + "[train]\nvalidate_every = 2", "train.validate_every = 2");
  refused("[data]\nprefetch = 4", "data.prefetch = 4");
  const std::string bf16 = pretrained + "weights = \"bf16\"\n";
  EXPECT_EQ(refusal(bf16), "no error");
  EXPECT_EQ(refusal(bf16 + "[precision]\ncompute = \"bf16\""), "no error");
  EXPECT_NE(refusal(bf16 + "[precision]\ncompute = \"fp32\"").find("does nothing beside model.weights"),
            std::string::npos);
  refused("[data]\npath = \"ids.bin\"\ntokenizer = \"t.json\"", "data.tokenizer = \"t.json\"");
  refused("[memory]\nverify_replay_by = \"values\"", "memory.verify_replay_by = \"values\"");
  refused("[state]\nlast = 3", "state.last = 3");
  refused("[state]\nwrite = \"wait\"", "state.write = \"wait\"");
}

TEST(Config, ADefaultIsRefusedOnlyWhereItWasSetByName) {
  const std::string pretrained = "[model]\nkind = \"llama\"\npath = \"m.gguf\"\n";
  EXPECT_EQ(refusal(pretrained), "no error");
  EXPECT_NE(refusal(pretrained + "blocks = 6").find("model.blocks = 6"), std::string::npos) << "the default";
  EXPECT_NE(refusal(pretrained, {"model.blocks=6"}).find("model.blocks = 6"), std::string::npos);
  EXPECT_EQ(refusal(pretrained + "[data]\npacking = \"documents\""), "no error") << "with a fraction by default";
  EXPECT_EQ(refusal("[model]\nkey_heads = 0\n[lora]\nrank = 0\n[data]\ntokenizer = \"auto\""), "no error")
      << "which ask for nothing";
  EXPECT_EQ(from_toml(pretrained + "blocks = 6"), from_toml(pretrained)) << "the same run";
}

TEST(Config, WhatIsTurnedOffByNameTakesItsSettingsWithIt) {
  const std::string lora =
      "[model]\nkind = \"llama\"\npath = \"m.gguf\"\n[lora]\nrank = 8\nalpha = 32\n[output]\nfolder = \"out\"\n"
      "[state]\nlast = 3\n";
  EXPECT_EQ(refusal(lora), "no error");
  EXPECT_EQ(refusal(lora, {"lora.rank=0", "output.folder="}), "no error");
  EXPECT_EQ(refusal("[data]\nprefetch = 4\nworkers = 2", {"data.workers=0"}), "no error");
}

TEST(Config, AWordThatIsNoneListsThoseThereAre) {
  EXPECT_EQ(mistake_in("[precision]\ncompute = \"bf61\""),
            "run.toml: precision.compute is \"bf61\"; did you mean \"bf16\"? it must be one of fp32, bf16, fp16, auto");
  EXPECT_EQ(mistake_of_set("model.kind=lama")
                .find("--set: model.kind is \"lama\"; did you mean \"llama\"? it must be one "
                      "of gpt, "),
            0U);
  EXPECT_EQ(mistake_in("[optimizer]\nkind = \"adam\"")
                .find("run.toml: optimizer.kind is \"adam\"; did you mean \"adamw\"? it must be one of adamw"),
            0U);
  EXPECT_EQ(from_toml("[model]\nweights = \"packed\"").model.weights, BaseWeights::Packed);
  EXPECT_EQ(from_toml("[model]\nloss = \"plain\"").model.loss, LossKind::Plain);
  EXPECT_EQ(mistake_of_set("model.loss=tilde"),
            "--set: model.loss is \"tilde\"; did you mean \"tiled\"? it must be one of auto, plain, tiled");
  EXPECT_EQ(to_json(from_toml("[lora]\nscale = \"alpha/sqrt(rank)\""))["lora"]["scale"], "alpha/sqrt(rank)");
  Config config;
  config.precision.compute = static_cast<Compute>(9);
  EXPECT_NE(message_of([&] { validate(config); })
                .find("precision.compute is \"\"; it must be one of fp32, bf16, fp16, "
                      "auto"),
            std::string::npos);
}

TEST(Config, ListsHaveCommasBetween) {
  EXPECT_EQ(split_list(" q_proj, v_proj ,,x"), (std::vector<std::string>{"q_proj", "v_proj", "x"}));
  EXPECT_TRUE(split_list("").empty());
}

TEST(Validate, ChecksAConfigThatWasBuiltInCode) {
  Config config;
  config.model.heads = 0;
  EXPECT_NE(message_of([&] { validate(config); }).find("configuration: model.heads is 0"), std::string::npos);
  config = Config{};
  config.output.folder = "l\xe4tin-1";
  EXPECT_NE(message_of([&] { validate(config); }).find("is not UTF-8"), std::string::npos);
}

TEST(ConfigKeys, DescribeEveryKeyOfTheJson) {
  const std::vector<KeyHelp> keys = config_keys();
  std::size_t in_json = 0;
  for (const auto& section : to_json(Config{})) in_json += section.size();
  EXPECT_EQ(keys.size(), in_json);
  const auto steps = std::ranges::find(keys, "train.steps", &KeyHelp::key);
  ASSERT_NE(steps, keys.end());
  EXPECT_EQ(steps->type, "integer");
  EXPECT_EQ(steps->default_text, "100");
  EXPECT_EQ(steps->help, "optimizer steps to run (at least 1)");
}

TEST(ConfigKeys, HaveDefaultsThatSetKeyReads) {
  for (const KeyHelp& key : config_keys()) {
    Config config;
    EXPECT_NO_THROW(set_key(config, key.key + "=" + key.default_text)) << key.key;
    EXPECT_EQ(config, Config{}) << key.key;
  }
}

TEST(OpenSets, TheNamesOfMembersAreTheWordsOfTheirKeys) {
  const std::vector<KeyHelp> keys = config_keys();
  for (const auto& [key, names] : {std::pair{"model.kind", family_names()}, {"optimizer.kind", optimizer_names()}}) {
    const auto found = std::ranges::find(keys, key, &KeyHelp::key);
    ASSERT_NE(found, keys.end());
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(found->default_text, "\"" + names.front() + "\"");
    for (const std::string& name : names) {
      EXPECT_NE(found->help.find(name), std::string::npos) << name;
      Config config;
      EXPECT_NO_THROW(set_key(config, std::string(key) + "=" + name));
    }
  }
}

TEST(OpenSets, AMembersOwnKeysKeepTheirTypesAndRules) {
  Config config;
  set_key(config, "model.key_heads=2");
  set_key(config, "optimizer.beta1=0");
  EXPECT_EQ(config.model.own.integer("key_heads"), 2);
  EXPECT_EQ(config.optimizer.own.number("beta1"), 0.0);
  EXPECT_EQ(mistake_of_set("model.key_heads=2.5"),
            "--set: model.key_heads must be of type integer, but is 2.5 (number)");
  EXPECT_EQ(mistake_of_set("optimizer.beta1=1"),
            "--set: optimizer.beta1 is 1.0; it must be at least 0 and less than 1");
  EXPECT_EQ(config_from_json(to_json(config), "json"), config);
  EXPECT_NE(config, Config{});
}

TEST(Resumed, TellsOfKeysThatWereFixedAndOfNoOthers) {
  Config before, now;
  now.train.steps = 7;
  now.optimizer.learning_rate = 1;
  now.optimizer.own.set("beta1", 0.5);
  now.data.workers = 3;
  now.output.folder = "elsewhere";
  EXPECT_TRUE(changed_when_resumed(to_json(before), now).empty());
  now.train.seed = 9;
  now.model.own.set("dropout", 0.5);
  now.data.packing = Packing::Documents;
  nlohmann::json state = to_json(before);
  state["data"].erase("packing");  // a key that is newer than the state
  EXPECT_EQ(changed_when_resumed(state, now),
            (std::vector<std::string>{"model.dropout was 0.0 and is 0.5",
                                      "data.packing was \"none\" and is \"documents\"", "train.seed was 0 and is 9"}));
}

TEST(Resumed, WordsThatComeToTheSameAreNoChange) {
  const auto changed = [](const char* kind, LossKind was, LossKind is) {
    Config before;
    before.model.kind = kind;
    Config now = before;
    before.model.loss = was;
    now.model.loss = is;
    return changed_when_resumed(to_json(before), now);
  };
  EXPECT_TRUE(changed("llama", LossKind::Auto, LossKind::Tiled).empty());
  EXPECT_TRUE(changed("llama", LossKind::Tiled, LossKind::Auto).empty());
  EXPECT_TRUE(changed("gpt", LossKind::Auto, LossKind::Plain).empty());
  EXPECT_EQ(changed("llama", LossKind::Auto, LossKind::Plain),
            (std::vector<std::string>{"model.loss was \"auto\" and is \"plain\""}));
  EXPECT_EQ(changed("gpt", LossKind::Tiled, LossKind::Auto).size(), 1U);
  nlohmann::json state = to_json(Config{});
  state["model"]["loss"] = 7;
  EXPECT_EQ(changed_when_resumed(state, Config{}).size(), 1U) << "no word";
  EXPECT_TRUE(changed_when_resumed({{"model", 7}}, Config{}).empty()) << "what is not there had its default";
}

TEST(Resumed, AnotherDeviceOfTheTypeIsNoChange) {
  Config now;
  now.train.device = "cuda:1";
  EXPECT_TRUE(changed_when_resumed({{"train", {{"device", "cuda"}}}}, now).empty());
  EXPECT_EQ(changed_when_resumed({{"train", {{"device", "cpu"}}}}, now).size(), 1U);
}

TEST(LoadConfig, NamesTheFile) {
  EXPECT_NE(message_of([] { load_config("no/such.toml"); }).find("no/such.toml"), std::string::npos);
}

}  // namespace
}  // namespace snug::train
