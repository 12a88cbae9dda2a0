#include "snug/data/named_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/fault.h"

namespace snug::data {
namespace {

using snug::testing::fault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::vector<std::pair<std::string, TokenId>> pairs(const std::vector<NamedToken>& tokens) {
  std::vector<std::pair<std::string, TokenId>> all;
  for (const NamedToken& token : tokens) all.emplace_back(token.text, token.id);
  return all;
}

TEST(NamedTokens, AreThoseOfEveryLayoutOfTransformers) {
  const std::string added = R"("added_tokens": [{"id": 9, "content": "<|im_end|>", "special": true}])";
  EXPECT_THAT(pairs(tokens_of_tokenizer_json(R"({"model": {"vocab": {"a": 1, "b": 0}}, )" + added + "}", "f")),
              UnorderedElementsAre(std::pair("a", 1), std::pair("b", 0), std::pair("<|im_end|>", 9)));
  EXPECT_THAT(pairs(tokens_of_tokenizer_json(R"({"model": {"vocab": [["<unk>", 0.0], ["a", -1.5]]}})", "f")),
              ElementsAre(std::pair("<unk>", 0), std::pair("a", 1)));
  EXPECT_THAT(pairs(tokens_of_added_tokens_json(R"({"<pad>": 32000})", "f")), ElementsAre(std::pair("<pad>", 32000)));
  EXPECT_THAT(pairs(tokens_of_tokenizer_config(
                  R"({"added_tokens_decoder": {"7": {"content": "<s>"}}, "eos_token": "x"})", "f")),
              ElementsAre(std::pair("<s>", 7)));
  EXPECT_THAT(tokens_of_tokenizer_config(R"({"eos_token": "x"})", "f"), IsEmpty());
}

TEST(NamedTokens, WithoutATextOrAnIdAreRefused) {
  for (const char* text :
       {R"({"added_tokens_decoder": {"7a": {"content": "<s>"}}})",
        R"({"added_tokens_decoder": {"-7": {"content": "<s>"}}})", R"({"added_tokens_decoder": {"7": {"content": 1}}})",
        R"({"added_tokens_decoder": {"7": 3}})", R"({"added_tokens_decoder": "none"})"}) {
    EXPECT_THAT(fault([&] { (void)tokens_of_tokenizer_config(text, "f"); }), HasSubstr("tokenizer: f: ")) << text;
  }
  for (const char* text : {R"({"model": {"vocab": {"a": -1}}})", R"({"model": {"vocab": {"a": 18446744073709551615}}})",
                           R"({"model": {"vocab": [[]]}})", R"({"model": {"vocab": 5}})", R"({"added_tokens": [1]})"}) {
    EXPECT_NE(fault([&] { (void)tokens_of_tokenizer_json(text, "f"); }), "none") << text;
  }
  EXPECT_THAT(fault([] { (void)tokens_of_added_tokens_json("[1]", "f"); }),
              HasSubstr("f: it is [1]; it must be an object"));
}

}  // namespace
}  // namespace snug::data
