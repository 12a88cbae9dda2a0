#include "snug/state/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "snug/base/damaged_file.h"
#include "snug/base/errors.h"
#include "snug/state/safetensors.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

fs::path beside(const char* name) { return fs::path(SNUG_TESTS) / "state" / name; }

/// A GGUF file, piece by piece.
class Writer {
 public:
  template <class T>
  Writer& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& text(const std::string& value) {
    number<std::uint64_t>(value.size());
    bytes_ += value;
    return *this;
  }
  Writer& begin(std::uint64_t tensors, std::uint64_t values, std::uint32_t version = 3) {
    bytes_ += "GGUF";
    return number(version).number(tensors).number(values);
  }
  Writer& tensor(const std::string& name, const std::vector<std::int64_t>& sizes, std::uint32_t type,
                 std::uint64_t offset) {
    text(name).number(static_cast<std::uint32_t>(sizes.size()));
    for (const std::int64_t s : sizes) number(s);
    return number(type).number(offset);
  }
  Writer& data(std::size_t bytes) {
    bytes_.append((32 - bytes_.size() % 32) % 32, '\0');
    bytes_.append(bytes, '\0');
    return *this;
  }
  [[nodiscard]] GgufHeader parse() const {
    return parse_gguf_header({reinterpret_cast<const std::uint8_t*>(bytes_.data()), bytes_.size()}, "f");
  }
  [[nodiscard]] std::string fault() const {
    try {
      (void)parse();
    } catch (const DamagedFile& error) {
      return error.what();
    }
    return "none";
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

TEST(Gguf, DecodesEveryFormatBitwiseAsTheReferenceDoes) {
  const Gguf file = open_gguf(beside("reference.gguf"));
  const auto expected = open_safetensors(beside("reference_gguf.safetensors")).tensors;
  ASSERT_EQ(file.tensors.size(), 11U);
  for (const auto& [name, tensor] : file.tensors) {
    const at::Tensor ours = tensor.read().to(at::kFloat), theirs = expected.at(name).read();
    ASSERT_EQ(ours.sizes(), theirs.sizes()) << name;
    EXPECT_EQ(std::memcmp(ours.const_data_ptr(), theirs.const_data_ptr(), ours.nbytes()), 0) << name;
  }
  EXPECT_EQ(file.tensors.at("blocks.F16").dtype, at::kHalf);
  EXPECT_EQ(file.tensors.at("blocks.BF16").dtype, at::kBFloat16);
  EXPECT_EQ(file.tensors.at("blocks.Q4_1").dtype, at::kFloat);
  const GgufBlocks& blocks = file.blocks.at("blocks.Q4_1");
  EXPECT_THAT(blocks.shape, ElementsAre(3, 64));
  EXPECT_EQ(blocks.bytes.numel(), 3 * 2 * 20);
}

TEST(Gguf, ReadsMetadataOfEveryType) {
  const GgufHeader header = open_gguf(beside("reference.gguf")).header;
  EXPECT_EQ(header.version, 3U);
  EXPECT_EQ(*header.find<std::string>("general.architecture"), "llama");
  EXPECT_EQ(*header.find<std::uint64_t>("numbers.u8"), 200U);
  EXPECT_EQ(*header.find<std::int64_t>("numbers.i8"), -100);
  EXPECT_EQ(*header.find<std::uint64_t>("numbers.u16"), 60000U);
  EXPECT_EQ(*header.find<std::int64_t>("numbers.i16"), -30000);
  EXPECT_EQ(*header.find<std::uint64_t>("numbers.u32"), 4000000000U);
  EXPECT_EQ(*header.find<std::int64_t>("numbers.i32"), -2000000000);
  EXPECT_EQ(*header.find<std::uint64_t>("numbers.u64"), std::uint64_t{1} << 63U);
  EXPECT_EQ(*header.find<std::int64_t>("numbers.i64"), -(std::int64_t{1} << 62U));
  EXPECT_EQ(*header.find<double>("numbers.f32"), 0.5);
  EXPECT_EQ(*header.find<double>("numbers.f64"), 0.1);
  EXPECT_EQ(*header.find<bool>("numbers.bool"), true);
  EXPECT_THAT(*header.find<std::vector<std::string>>("lists.text"), ElementsAre("one", "", "drei \u00e4"));
  EXPECT_THAT(*header.find<std::vector<std::int64_t>>("lists.numbers"), ElementsAre(-1, 2, -3));
  EXPECT_EQ(header.find<std::int64_t>("numbers.u8"), nullptr);
  EXPECT_EQ(header.find<std::string>("nothing"), nullptr);
}

TEST(Gguf, SizesAreTurnedRoundAndOffsetsPadded) {
  const GgufHeader header = Writer().begin(2, 0).tensor("a", {3, 5}, 0, 0).tensor("b", {2}, 1, 64).data(64 + 4).parse();
  EXPECT_THAT(header.tensors[0].shape, ElementsAre(5, 3));
  EXPECT_EQ(header.tensors[0].end - header.tensors[0].begin, 60U);
  EXPECT_EQ(header.tensors[1].begin - header.tensors[0].begin, 64U);
}

TEST(Gguf, ADamagedFileSaysWhere) {
  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_THAT(Writer().text("GGML").fault(), HasSubstr("no GGUF file"));
  EXPECT_THAT(Writer().fault(), HasSubstr("at byte 0: the mark of the format: needs 4 bytes"));
  EXPECT_THAT(Writer().begin(0, 0, 1).fault(), HasSubstr("version 1"));
  EXPECT_THAT(Writer().begin(0, 0, 0x03000000).fault(), HasSubstr("big-endian"));
  EXPECT_EQ(Writer().begin(0, 0, 2).fault(), "none");
  EXPECT_THAT(Writer().begin(1, 0).fault(), HasSubstr("cut off"));
  EXPECT_THAT(Writer().begin(most, 0).fault(), HasSubstr("cut off"));
  EXPECT_THAT(Writer().begin(0, most).fault(), HasSubstr("cut off"));
  EXPECT_THAT(Writer().begin(0, 1).number(most).fault(), HasSubstr("the format allows"));
  EXPECT_THAT(Writer().begin(0, 1).number(std::uint64_t{1} << 29).fault(), HasSubstr("cut off"));
  EXPECT_THAT(Writer().begin(0, 1).text("k").number<std::uint32_t>(99).fault(), HasSubstr("99 is no type"));
  EXPECT_THAT(Writer()
                  .begin(0, 1)
                  .text("k")
                  .number<std::uint32_t>(9)
                  .number<std::uint32_t>(8)
                  .number(std::uint64_t{1} << 29)
                  .fault(),
              HasSubstr("cut off"));
  EXPECT_THAT(
      Writer().begin(0, 1).text("k").number<std::uint32_t>(9).number<std::uint32_t>(9).number<std::uint64_t>(0).fault(),
      HasSubstr("array of arrays"));
  Writer twice;
  twice.begin(0, 2);
  for (int i = 0; i < 2; ++i) twice.text("k").number<std::uint32_t>(0).number<std::uint8_t>(1);
  EXPECT_THAT(twice.fault(), HasSubstr("the key k is there twice"));
  EXPECT_THAT(Writer().begin(1, 0).tensor(std::string(64, 'n'), {1}, 0, 0).data(4).fault(), HasSubstr("name of 64"));
  EXPECT_THAT(Writer().begin(1, 0).tensor("a", {1, 1, 1, 1, 1}, 0, 0).data(4).fault(), HasSubstr("5 dimensions"));
  EXPECT_THAT(Writer().begin(1, 0).tensor("a", {-1}, 0, 0).data(4).fault(), HasSubstr("cannot be counted"));
  EXPECT_THAT(Writer().begin(1, 0).tensor("a", {1LL << 40, 1LL << 40}, 0, 0).data(4).fault(),
              HasSubstr("cannot be counted"));
  EXPECT_THAT(Writer().begin(1, 0).tensor("a", {1LL << 40}, 0, 0).data(4).fault(), HasSubstr("longer than the file"));
  EXPECT_THAT(Writer().begin(1, 0).tensor("a", {32}, 16, 0).data(64).fault(), HasSubstr("ggml's format 16"));
  EXPECT_THAT(Writer().begin(1, 0).tensor("a", {16}, 2, 0).data(64).fault(), HasSubstr("no whole blocks of 32 (Q4_0)"));
  EXPECT_THAT(Writer().begin(1, 0).tensor("a", {1}, 0, 32).data(64).fault(), HasSubstr("begins at byte 32"));
  EXPECT_THAT(Writer().begin(1, 0).tensor("a", {4}, 0, 0).data(12).fault(), HasSubstr("cut off"));
  EXPECT_THAT(Writer().begin(2, 0).tensor("a", {1}, 0, 0).tensor("a", {1}, 0, 32).data(64).fault(),
              HasSubstr("two tensors"));
  EXPECT_THAT(
      Writer().begin(0, 1).text("general.alignment").number<std::uint32_t>(4).number<std::uint32_t>(3).data(4).fault(),
      HasSubstr("no power of two"));
}

/// Every prefix of a real file is an error that says so, and never a crash.
TEST(Gguf, AFileThatIsCutOffAnywhereIsRefused) {
  const Writer whole = [] {
    Writer w;
    w.begin(1, 2).text("a").number<std::uint32_t>(8).text("text");
    w.text("b").number<std::uint32_t>(9).number<std::uint32_t>(4).number<std::uint64_t>(2).number<std::uint64_t>(0);
    w.tensor("t", {4}, 0, 0).data(16);
    return w;
  }();
  EXPECT_EQ(whole.fault(), "none");
  for (std::size_t length = 0; length < whole.bytes().size(); ++length) {
    const std::string part = whole.bytes().substr(0, length);
    EXPECT_THROW(parse_gguf_header({reinterpret_cast<const std::uint8_t*>(part.data()), part.size()}, "f"), DamagedFile)
        << length;
  }
}

}  // namespace
}  // namespace snug::state
