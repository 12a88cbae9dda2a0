// The tokenizer of a folder as transformers saves it, with files that do and do not belong together.
#include "snug/data/tokenizer_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "snug/base/text_file.h"
#include "snug/data/bos_eos.h"
#include "snug/data/sentence_piece.h"
#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using Json = nlohmann::json;
using snug::testing::fault;
using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenizerFolder : public ::testing::Test {
 protected:
  [[nodiscard]] std::string refused() const {
    return fault([&] { (void)open_tokenizer_of_folder(folder.path()); });
  }

  void write(const std::string& name, const std::string& text) const { (void)folder.write(name, text); }

  TemporaryFolder folder{"tokenizer_folder"};
};

class BesideAModel : public TokenizerFolder {
 protected:
  BesideAModel() {
    write("tokenizer.model", read_text(beside("bpe.model")));
    ours = Json::parse(read_text(beside("bpe_converted.json")));
  }

  Json ours;  // what transformers makes of it
};

TEST_F(BesideAModel, ATokenizerJsonOfTheSameTokensIsNotInTheWay) {
  EXPECT_EQ(refused(), "none");
  write("tokenizer.json", ours.dump());
  write("added_tokens.json", R"({"<s>": 1})");
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"2": {"content": "</s>"}}, "legacy": true})");
  EXPECT_EQ(refused(), "none");
  const auto opened = open_tokenizer_of_folder(folder.path());
  EXPECT_NE(dynamic_cast<const SentencePieceTokenizer*>(opened.get()), nullptr);
}

TEST_F(BesideAModel, ATokenizerConfigSaysWhatIsPutAroundATextAndAPromptIsLeftOpen) {
  const auto ids = [&] { return open_tokenizer_of_folder(folder.path(), {.begin = true})->encode("the"); };
  const std::vector<TokenId> both = ids();
  ASSERT_EQ(both.front(), 1);
  const std::vector<TokenId> bare(both.begin() + 1, both.end());
  write("tokenizer_config.json", R"({"add_bos_token": false})");
  EXPECT_EQ(ids(), bare);
  write("tokenizer_config.json", R"({"add_bos_token": null, "add_eos_token": true})");
  std::vector<TokenId> ended = both;
  ended.push_back(2);
  EXPECT_EQ(ids(), ended);
  EXPECT_EQ(encode_prompt(*open_tokenizer_of_folder(folder.path(), {.begin = true}), "the"), both);
  write("tokenizer_config.json", R"({"add_bos_token": "yes"})");
  EXPECT_THAT(fault([&] { (void)ids(); }), HasSubstr("add_bos_token is \"yes\""));
}

TEST_F(BesideAModel, TokensThatWereAddedAreRefusedWhereverTheyStand) {
  const auto says = AllOf(HasSubstr("has \"<|im_start|>\", token 520, and"),
                          HasSubstr("tokenizer.model has no such one"), HasSubstr("set data.tokenizer = "));
  write("added_tokens.json", R"({"<|im_start|>": 520})");
  EXPECT_THAT(refused(), AllOf(says, HasSubstr("added_tokens.json")));
  write("added_tokens.json", "{}");
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"520": {"content": "<|im_start|>"}}})");
  EXPECT_THAT(refused(), AllOf(says, HasSubstr("tokenizer_config.json")));
  write("tokenizer_config.json", "{}");
  ours["added_tokens"].push_back({{"id", 520}, {"content", "<|im_start|>"}});
  write("tokenizer.json", ours.dump());
  EXPECT_THAT(refused(), AllOf(says, HasSubstr("tokenizer.json")));
}

TEST_F(BesideAModel, ATokenizerJsonOfOtherTokensIsRefused) {
  Json other = ours;
  other["model"]["vocab"].erase("<0x00>");
  write("tokenizer.json", other.dump());
  EXPECT_THAT(refused(), HasSubstr("has no token 4, and"));
  other["model"]["vocab"]["<0x00>"] = 400;
  write("tokenizer.json", other.dump());
  EXPECT_THAT(refused(), HasSubstr("has \"<0x00>\", token 400, and"));
  write("tokenizer.json", read_text(beside("gpt2.json")));
  EXPECT_THAT(refused(), HasSubstr("take away the one that is old"));
}

TEST_F(TokenizerFolder, MayHaveATokenizerJsonAlone) {
  EXPECT_THAT(refused(), HasSubstr("has none of tokenizer.model, tokenizer.json"));
  write("tokenizer.json", read_text(beside("gpt2.json")));
  EXPECT_EQ(refused(), "none");
}

}  // namespace
}  // namespace snug::data
