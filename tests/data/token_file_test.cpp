#include "snug/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using snug::testing::fault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenFile, ReadsBothKindsOfLlmc) {
  const TemporaryFolder folder("token_file");
  const auto narrow =
      TokenFile::open(folder.write("16.bin", llmc(20240520, 1, 3, raw<std::uint16_t>({50256, 1, 65535}))));
  EXPECT_EQ(narrow.type(), TokenType::U16);
  EXPECT_THAT(ids_at(narrow, 0, 3), ElementsAre(50256, 1, 65535));
  EXPECT_THAT(narrow.documents(), ElementsAre(0));
  const auto wide =
      TokenFile::open(folder.write("32.bin", llmc(20240801, 7, 2, raw<std::uint32_t>({128000, 0xFFFFFFFFU}))));
  EXPECT_EQ(wide.type(), TokenType::U32);
  EXPECT_THAT(ids_at(wide, 0, 2), ElementsAre(128000, 0xFFFFFFFFLL));
}

TEST(TokenFile, TakesAFileWithoutHeaderAsNanoGpts) {
  const TemporaryFolder folder("token_file");
  const auto file = TokenFile::open(folder.write("train.bin", raw<std::uint16_t>({1, 2, 60000, 4})));
  EXPECT_EQ(file.size(), 4);
  EXPECT_THAT(ids_at(file, 1, 2), ElementsAre(2, 60000));
  EXPECT_THAT(ids_at(file, 4, 0), ElementsAre());
  EXPECT_THROW(ids_at(file, 3, 2), Error);
  EXPECT_THROW(ids_at(file, -1, 1), Error);
  EXPECT_THAT(fault([&] { TokenFile::open(folder.write("odd.bin", "abc")); }),
              HasSubstr("odd.bin: 3 bytes are no whole number of 16-bit tokens"));
  EXPECT_THAT(fault([&] { TokenFile::open(folder.write("none.bin", "")); }), HasSubstr("it has no tokens"));
}

TEST(TokenFile, SaysSoWhereItHasBecomeShorter) {
  const TemporaryFolder folder("token_file");
  const auto path = folder.write("train.bin", raw<std::uint16_t>(std::vector<std::uint16_t>(10'000, 7)));
  const auto file = TokenFile::open(path);
  std::filesystem::resize_file(path, 100);
  for (const std::int64_t offset : {9'000, 60}) {
    EXPECT_THAT([&] { (void)ids_at(file, offset, 10); },
                ::testing::ThrowsMessage<Error>(HasSubstr("train.bin: it has become shorter")));
  }
}

TEST(TokenFile, WithoutHeaderTellsWiderTokensByTheirUpperHalves) {
  const TemporaryFolder folder("token_file");
  std::vector<std::uint16_t> narrow;
  std::vector<std::uint32_t> small, large;
  std::vector<std::uint64_t> wide;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    narrow.push_back(static_cast<std::uint16_t>(i * 7919));
    small.push_back(i * 31 % 50257);
    large.push_back(i * 7919 % 128256);
    wide.push_back(i * 31 % 50257);
  }
  const auto opened = [&](const auto& tokens, std::int64_t vocabulary) {
    return TokenFile::open(folder.write("train.bin", raw(tokens)), vocabulary);
  };
  EXPECT_EQ(opened(narrow, 50257).type(), TokenType::U16);
  EXPECT_EQ(opened(small, 50257).type(), TokenType::U32);
  EXPECT_EQ(opened(small, 50257).size(), 1000);
  EXPECT_THAT(ids_at(opened(small, 50257), 3, 2), ElementsAre(93, 124));
  EXPECT_EQ(opened(large, 128256).type(), TokenType::U32);
  EXPECT_EQ(opened(wide, 50257).type(), TokenType::I64);
  EXPECT_EQ(opened(wide, 50257).size(), 1000);
  EXPECT_EQ(opened(std::vector<std::uint16_t>(1000, 0), 50257).type(), TokenType::U16) << "zeros tell nothing";
  EXPECT_THAT(fault([&] { (void)opened(narrow, 128256); }),
              HasSubstr("have ids that a vocabulary of 128256 has not; 16-bit tokens cannot hold all of its ids"));
}

TEST(TokenFile, ReadsMegatronsPairsByEitherName) {
  const TemporaryFolder folder("token_file");
  const auto bin = folder.write("text.bin", raw<std::uint16_t>({10, 11, 12, 13, 14, 15}));
  const auto index = folder.write("text.idx", MegatronFields{8, {2, 1, 0, 2}, {8, 0, 5, 2}, {0, 1, 4}}.bytes());
  for (const auto& path : {bin, index}) {
    const TokenFile file = TokenFile::open(path);
    EXPECT_EQ(file.size(), 5);
    EXPECT_THAT(file.documents(), ElementsAre(0, 2));
    const Ids all{14, 15, 10, 11, 12};
    for (std::int64_t offset = 0; offset <= 5; ++offset) {
      for (std::int64_t count = 0; offset + count <= 5; ++count) {
        EXPECT_EQ(ids_at(file, offset, count), Ids(all.begin() + offset, all.begin() + offset + count));
      }
    }
  }
}

TEST(TokenFile, TokensMayLieAtAnyByte) {
  const TemporaryFolder folder("token_file");
  const auto bin = folder.write("odd.bin", "x" + raw<std::int32_t>({-7, 100000}));
  (void)folder.write("odd.idx", MegatronFields{4, {2}, {1}, {0, 1}}.bytes());
  EXPECT_THAT(ids_at(TokenFile::open(bin), 0, 2), ElementsAre(-7, 100000));
}

TEST(TokenFile, AHeaderMustAgreeWithTheLength) {
  const TemporaryFolder folder("token_file");
  const auto with = [&](std::int32_t version, std::int32_t count, const std::string& tokens) {
    return fault([&] { TokenFile::open(folder.write("a.bin", llmc(20240520, version, count, tokens))); });
  };
  EXPECT_EQ(with(1, 1, "ab"), "none");
  EXPECT_THAT(with(2, 1, "ab"), HasSubstr("a.bin: version 2 at byte 4 is not 1"));
  EXPECT_THAT(with(1, 2, "ab"), HasSubstr("2 tokens at byte 8 take 2 bytes each, and 2 follow the header"));
  EXPECT_THAT(with(1, -1, "ab"), HasSubstr("-1 tokens at byte 8"));
  EXPECT_THAT(with(1, 1, "abc"), HasSubstr("1 tokens at byte 8"));
  EXPECT_THAT(with(1, 0, ""), HasSubstr("no tokens"));
  EXPECT_THAT(fault([&] {
                TokenFile::open(folder.write("b.bin", raw<std::int32_t>({20240520, 1})));
              }),
              HasSubstr("the header of llm.c's files takes 1024"));
  EXPECT_THAT(fault([&] { TokenFile::open(folder.path() / "missing.bin"); }),
              HasSubstr("missing.bin: No such file or directory"));
  EXPECT_THAT(fault([&] { TokenFile::open(folder.path()); }), HasSubstr("Is a directory"));
}

TEST(TokenFile, DamageIsAnErrorOrOtherTokensAndNoCrash) {
  int refused = 0;
  const auto all_inside = [&](const std::string& bytes) {
    try {
      const TokenLayout layout = find_tokens(as_bytes(bytes), "f");
      EXPECT_LE(layout.runs[0].begin + static_cast<std::size_t>(layout.size) * width_of(layout.type), bytes.size());
    } catch (const UsageError&) {
      ++refused;
    }
  };
  for_each_damage(llmc(20240520, 1, 3, raw<std::uint16_t>({1, 2, 3})), all_inside);
  for_each_damage(llmc(20240801, 7, 2, raw<std::uint32_t>({1, 2})), all_inside);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace snug::data
