#include "snug/data/tokenizer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "snug/base/errors.h"
#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json small_json() {
  return Json::parse(R"({
    "added_tokens": [{"id": 4, "content": "<s>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}]},
    "post_processor": {"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]},
    "model": {"type": "BPE", "vocab": {"a": 0, "Ġ": 1, "Ġa": 2, "1": 3}, "merges": ["Ġ a"]}
  })");
}

std::string json_fault(const Json& json) {
  return snug::testing::fault([&] { parse_tokenizer_json(json.dump(), "tokenizer.json"); });
}

TEST(TokenizerJson, ReadsVocabularyMergesStepsAndTheFirstToken) {
  Json json = small_json();
  for (const bool pairs : {false, true}) {
    if (pairs) json["model"]["merges"] = Json::parse(R"([["Ġ", "a"]])");
    const BytePairModel model = parse_tokenizer_json(json.dump(), "f");
    EXPECT_THAT(model.tokens, ElementsAre("a", " ", " a", "1", "<s>"));
    EXPECT_THAT(model.merges, ElementsAre(std::pair<std::string, std::string>(" ", "a")));
    ASSERT_EQ(model.added.size(), 1U);
    EXPECT_EQ(model.added[0].id, 4);
    EXPECT_TRUE(model.added[0].special);
    EXPECT_THAT(model.before, ElementsAre(4));
    EXPECT_EQ(model.pre_tokenizer.size(), 2U);
    EXPECT_THAT(BytePairTokenizer(model).encode("a a11"), ElementsAre(4, 0, 2, 3, 3));
  }
}

TEST(TokenizerJson, RefusesWhatChangesTokensAndIsNotKnown) {
  const auto with = [](const char* pointer, const Json& value) {
    Json json = small_json();
    json[Json::json_pointer(pointer)] = value;
    return json_fault(json);
  };
  EXPECT_EQ(json_fault(small_json()), "none");
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("its model.type is \"Unigram\"; it must be \"BPE\""));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("falls back to bytes"));
  EXPECT_THAT(with("/normalizer", {{"type", "NFC"}}),
              HasSubstr("its normalizer is {\"type\":\"NFC\"}; it must be null"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}}),
              HasSubstr("its pre_tokenizer.type is \"Metaspace\"; it must be one of \"Sequence\""));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("no ByteLevel"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/1/add_prefix_space", true), HasSubstr("puts a space in front"));
  EXPECT_THAT(with("/model/merges/0", "lonely"), HasSubstr("its model.merges[0] is \"lonely\"; it must be a pair"));
  EXPECT_THAT(with("/model/merges/0", 7), HasSubstr("its model.merges[0] is 7; it must be a pair"));
  EXPECT_THAT(with("/model/vocab/a", -1), HasSubstr("its model.vocab.a is -1; it must be an integer, at least 0"));
  EXPECT_THAT(with("/model/vocab/a", 1ULL << 40U), HasSubstr("is 1099511627776; it must be"));
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_EQ(with("/model/end_of_word_suffix", ""), "none");
  EXPECT_THAT(with("/added_tokens/0/lstrip", true), HasSubstr("its added_tokens[0].lstrip is true; it must be false"));
  EXPECT_EQ(with("/added_tokens/0/special", false), "none");
  EXPECT_THAT(with("/post_processor", {{"type", "RobertaProcessing"}}),
              HasSubstr("\"RobertaProcessing\"; it must be one of"));
  EXPECT_THAT(with("/post_processor/single/0/SpecialToken/id", "<t>"),
              HasSubstr("SpecialToken.id is \"<t>\"; it must be one of its added_tokens"));
  EXPECT_THAT(with("/pre_tokenizer/pretokenizers/2", {{"type", "Digits"}}), HasSubstr("goes on after ByteLevel"));
  EXPECT_THAT(with("/model/vocab/a", Json::array({Json::array()})),
              HasSubstr("its model.vocab.a is [[]]; it must be an integer"));
  EXPECT_THROW(read_tokenizer_json("/"), UsageError);
  EXPECT_THAT(with("/added_tokens/0", Json::object()), HasSubstr("it has no added_tokens[0].content"));
  EXPECT_THROW(parse_tokenizer_json("[1]", "f"), UsageError);
  EXPECT_THROW(parse_tokenizer_json("{\"model\"", "f"), UsageError);
  EXPECT_THROW(read_tokenizer_json("/nowhere/tokenizer.json"), UsageError);
}

/// Hugging Face's tokenizers takes one of the two, and which one its file does not say.
TEST(TokenizerJson, PartsThatContradictEachOtherAreRefused) {
  const auto with_added = [](const Json& token) {
    Json json = small_json();
    json["added_tokens"].push_back(token);
    return json_fault(json);
  };
  EXPECT_EQ(with_added({{"id", 3}, {"content", "1"}}), "none") << "as the vocabulary has it";
  EXPECT_EQ(with_added({{"id", 4}, {"content", "<s>"}}), "none") << "twice the same";
  EXPECT_EQ(with_added({{"id", 5}, {"content", " a"}}), "none") << "the text of an entry, not its name";
  EXPECT_THAT(with_added({{"id", 5}, {"content", "1"}}),
              HasSubstr("its added_tokens[1].id is 5; it must be 3, which \"1\" has in its vocabulary"));
  EXPECT_THAT(with_added({{"id", 2}, {"content", "<t>"}}),
              HasSubstr("its added_tokens[1].id is 2; it must be one that no other token has; \"Ġa\" has it"));
  EXPECT_THAT(with_added({{"id", 4}, {"content", "<t>"}}), HasSubstr("no other token has; \"<s>\" has it"));
  EXPECT_THAT(with_added({{"id", 5}, {"content", "<s>"}}), HasSubstr("it must be 4, which \"<s>\" has before"));

  Json json = small_json();
  json["post_processor"]["special_tokens"]["<s>"] = {{"id", "<s>"}, {"ids", {4}}, {"tokens", {"<s>"}}};
  EXPECT_EQ(json_fault(json), "none");
  for (const Json& ids : {Json::array({3}), Json::array({4, 4}), Json::array()}) {
    json["post_processor"]["special_tokens"]["<s>"]["ids"] = ids;
    EXPECT_THAT(json_fault(json), HasSubstr("it must be [4], as the added token \"<s>\" has it"));
  }
}

TEST(TokenizerJson, DeepNestingIsRefusedAndNoCrash) {
  constexpr int kDepth = 100'000;
  std::string text, end;
  for (int i = 0; i < kDepth; ++i) {
    text += R"({"type":"Sequence","pretokenizers":[)";
    end += "]}";
  }
  text += R"({"type":"ByteLevel","add_prefix_space":false})" + end;
  Json json = small_json();
  json.erase("pre_tokenizer");
  std::string whole = json.dump();
  whole.insert(1, "\"pre_tokenizer\":" + text + ",");
  try {
    parse_tokenizer_json(whole, "f");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nested"));
  }
}

TEST(TokenizerJson, DamageIsAnErrorOrAnotherTokenizerAndNoCrash) {
  int refused = 0, read = 0;
  Json whole = small_json();
  const Json split =
      Json::parse(R"({"type": "Split", "pattern": {"Regex": "[a-f]+|\\s"}, "behavior": "Isolated", "invert": false})");
  Json& steps = whole["pre_tokenizer"]["pretokenizers"];
  steps.insert(steps.begin(), split);
  const auto attempt = [&](const std::string& json) {
    try {
      const BytePairTokenizer tokenizer(parse_tokenizer_json(json, "f"));
      ++read;
      (void)tokenizer.decode(tokenizer.encode("a a11 <s>"));
    } catch (const Error&) {
      ++refused;
    }
  };
  for_each_damage(whole.dump(), attempt);
  // Values of other types.
  const Json flat = whole.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    for (Json::json_pointer place(pointer); !place.empty(); place.pop_back()) {
      for (const Json& other : {Json(), Json(7), Json(-1), Json("x"), Json(true), Json::array(), Json::object()}) {
        Json changed = whole;
        changed[place] = other;
        attempt(changed.dump());
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 500);
}

}  // namespace
}  // namespace snug::data
