#include "snug/data/sentence_piece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::HasSubstr;

/// A field of bytes; lengths below 16,384.
std::string field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  out.push_back(static_cast<char>((bytes.size() & 0x7F) | 0x80));
  out.push_back(static_cast<char>(bytes.size() >> 7U));
  return out + bytes;
}

std::string with_rules(const std::vector<std::uint32_t>& trie, const std::string& texts, int number = 3) {
  const std::string bytes = raw(trie);
  return field(number, field(2, raw<std::uint32_t>({static_cast<std::uint32_t>(bytes.size())}) + bytes + texts));
}

std::string model_fault(const std::string& bytes) {
  return snug::testing::fault([&] { check_sentence_piece_model(as_bytes(bytes), "m"); });
}

TEST(SentencePieceModel, TakesWholeModels) {
  for (const char* name : {"bpe.model", "unigram.model"}) {
    std::ifstream in(std::filesystem::path(SNUG_TESTS) / "data" / name, std::ios::binary);
    EXPECT_EQ(model_fault({std::istreambuf_iterator<char>(in), {}}), "none") << name;
  }
  EXPECT_EQ(model_fault(""), "none") << "what is empty is for the library to refuse";
  EXPECT_EQ(model_fault(std::string("\x78\x96\x01\x79"
                                    "12345678"
                                    "\x7d"
                                    "1234",
                                    17)),
            "none")
      << "fields that it does not know";
}

TEST(SentencePieceModel, NumbersAndFieldsAreWhole) {
  EXPECT_THAT(model_fault("\x08"), HasSubstr("m: byte 1: it ends inside of a number"));
  EXPECT_THAT(model_fault("\x08" + std::string(10, '\xff')), HasSubstr("more than 64 bits"));
  EXPECT_THAT(model_fault("\x0a\x05"
                          "abc"),
              HasSubstr("byte 0: a field of 5 bytes, and 3 are left"));
  EXPECT_THAT(model_fault("\x0a" + std::string(9, '\xff') + "\x01"), HasSubstr("are left"));
  EXPECT_THAT(model_fault("\x0b"), HasSubstr("no field begins with 11"));
}

TEST(SentencePieceModel, TagsThatAreReadInTwoWaysAreRefused) {
  // Cut off to 32 bits it is that of the normalization rules, which would then not be checked.
  const std::string rules = field(3, "abc");
  EXPECT_THAT(model_fault(std::string("\x9A\x80\x80\x80\x10", 5) + rules.substr(1)), HasSubstr("no field begins with"));
  EXPECT_THAT(model_fault(std::string("\x9A\x80\x80\x80\x80\x00", 6) + rules.substr(1)),
              HasSubstr("no field begins with"));
  EXPECT_THAT(model_fault(std::string("\x02\x00", 2)), HasSubstr("no field begins with"));
}

TEST(SentencePieceModel, ScoresAreNumbers) {
  const auto piece = [](float score) { return field(1, "\x15" + raw<float>({score})); };
  EXPECT_EQ(model_fault(piece(-3)), "none");
  EXPECT_THAT(model_fault(piece(std::numeric_limits<float>::quiet_NaN())), HasSubstr("the score nan is no number"));
  EXPECT_THAT(model_fault(piece(std::numeric_limits<float>::infinity())), HasSubstr("the score inf"));
}

TEST(SentencePieceModel, TriesOfNormalizationRulesStayInside) {
  const std::string texts("x\0", 2);
  const auto with = [&](std::size_t place, std::uint32_t unit, std::uint32_t leaf = 0) {
    std::vector<std::uint32_t> trie(512, 0);
    trie[place] = unit;
    trie[256] = leaf;
    return model_fault(with_rules(trie, texts));
  };
  constexpr std::uint32_t kFar = 1U << 9U, kHasValue = 1U << 8U, kIsValue = 1U << 31U;
  EXPECT_EQ(with(0, 256U << 10U), "none");
  EXPECT_EQ(with(0, 1U << 10U | kFar), "none");
  EXPECT_THAT(with(0, 512U << 10U), HasSubstr("lead to place 512 of 512"));
  EXPECT_THAT(with(3, 2U << 10U | kFar), HasSubstr("lead to place 515 of 512"));
  EXPECT_EQ(with(3, 2U << 10U | kFar | kIsValue), "none") << "a value has no children";
  EXPECT_THAT(with(0, kIsValue | 512U << 10U), HasSubstr("lead to place")) << "but the root is read as if it had";
  EXPECT_EQ(with(0, 256U << 10U | kHasValue, kIsValue | 1), "none");
  EXPECT_THAT(with(0, 256U << 10U | kHasValue, kIsValue | 2), HasSubstr("lead to byte 2 of 2 of their texts"));
  EXPECT_THAT(model_fault(with_rules(std::vector<std::uint32_t>(256, 0), "x")), HasSubstr("has no end"));
  EXPECT_THAT(model_fault(with_rules(std::vector<std::uint32_t>(256, 0), "")), HasSubstr("trie of 1024 bytes in 1024"));
  EXPECT_THAT(model_fault(with_rules(std::vector<std::uint32_t>(255, 0), texts)),
              HasSubstr("must be a multiple of 1024"));
  EXPECT_THAT(model_fault(with_rules({}, texts)), HasSubstr("trie of 0 bytes"));
  EXPECT_THAT(model_fault(field(3, field(2, "ab"))), HasSubstr("rules are 2 bytes"));
  EXPECT_EQ(model_fault(field(3, field(2, ""))), "none");
  EXPECT_THAT(model_fault(with_rules(std::vector<std::uint32_t>(256, 0), "x", 5)), HasSubstr("has no end"))
      << "rules for decoding too";
}

}  // namespace
}  // namespace snug::data
