// Codecs as operators on tensors write what those of the host's memory write, and refuse what those refuse.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/tensor_codec.h"
#include "tests/memory/kinds_of_numbers.h"

namespace snug::memory {
namespace {

constexpr std::array kLossy = {Codec::BFloat16, Codec::Float8, Codec::Int8, Codec::Int4};
constexpr std::array<std::size_t, 10> kCounts = {1, 2, 127, 128, 129, 1000, 4095, 32'769, 262'145, 700'001};

at::Tensor tensor_of(std::span<const std::byte> contents) {
  at::Tensor bytes = at::empty({std::ssize(contents)}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), contents.data(), contents.size());
  return bytes;
}
std::vector<std::byte> bytes_of(const at::Tensor& tensor) {
  const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {data, data + tensor.nbytes()};
}

/// As fp32 or bf16 in memory; bf16 takes the upper halves.
std::vector<std::byte> in_memory(const std::vector<float>& numbers, std::size_t element) {
  std::vector<std::byte> all(numbers.size() * element);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(numbers[i]);
    std::memcpy(&all[i * element], reinterpret_cast<const std::byte*>(&bits) + (sizeof(bits) - element), element);
  }
  return all;
}

/// Of both ways: the code, and what it gives back.
void expect_alike(Codec codec, std::size_t element, const std::vector<std::byte>& contents, Bytes written) {
  const Bytes bytes = encoded_bytes(codec, element, contents);
  ASSERT_EQ(code_bytes(codec, element, std::ssize(contents)), bytes);
  std::vector<std::byte> code(static_cast<std::size_t>(bytes));
  ASSERT_TRUE(encode(codec, element, contents, code));
  const at::Tensor of_tensor = at::empty({bytes}, at::kByte), from = tensor_of(contents);
  ASSERT_TRUE(encode(codec, element, from, of_tensor));
  const std::vector<std::byte> other = bytes_of(of_tensor);
  const auto differs = std::mismatch(code.begin(), code.begin() + written, other.begin()).first;
  ASSERT_EQ(differs - code.begin(), written) << "of " << contents.size();
  ASSERT_EQ(bytes_of(from), contents) << "is only read";
  std::vector<std::byte> back(contents.size());
  decode(codec, element, code, back);
  const at::Tensor tensor_back = at::empty({std::ssize(contents)}, at::kByte);
  decode(codec, element, of_tensor, tensor_back);
  ASSERT_EQ(bytes_of(tensor_back), back) << "of " << contents.size();
}

TEST(TensorCodec, RoundsToTheSameBitsAsOnTheHost) {
  std::mt19937 random(6);
  for (const Codec codec : kLossy) {
    for (const std::size_t element : {sizeof(float), sizeof(std::uint16_t)}) {
      if (codec == Codec::BFloat16 && element != sizeof(float)) continue;
      SCOPED_TRACE(static_cast<int>(codec) * 10 + static_cast<int>(element));
      for (const std::size_t count : kCounts) {
        for (const auto& kind : kinds_of_numbers(random)) {
          std::vector<float> numbers(count);
          for (std::size_t i = 0; i < count; ++i) numbers[i] = kind(i);
          const auto contents = in_memory(numbers, element);
          // The smallest of zeros has a sign of its own.
          const bool only_zeros = std::ranges::all_of(numbers, [](float x) { return x == 0; });
          const Bytes bytes = encoded_bytes(codec, element, std::span(contents));
          ASSERT_NO_FATAL_FAILURE(expect_alike(codec, element, contents, only_zeros ? 0 : bytes));
        }
      }
    }
  }
}

TEST(TensorCodec, RefusesWhatIsNotFinite) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const Codec codec : kLossy) {
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max()}) {
      std::vector<float> numbers(300'000);
      for (float& number : numbers) number = normal(random);
      numbers[290'000] = bad;
      const auto contents = in_memory(numbers, sizeof(float));
      const Bytes bytes = *code_bytes(codec, sizeof(float), std::ssize(contents));
      std::vector<std::byte> code(static_cast<std::size_t>(bytes));
      const bool fits = encode(codec, sizeof(float), std::span<const std::byte>(contents), std::span(code));
      EXPECT_EQ(fits, codec == Codec::Float8 && std::isfinite(bad)) << bad;
      EXPECT_EQ(encode(codec, sizeof(float), tensor_of(contents), at::empty({bytes}, at::kByte)), fits) << bad;
    }
  }
}

TEST(TensorCodec, PacksMasksAsOnTheHost) {
  std::mt19937 random(8);
  for (const std::size_t count : kCounts) {
    std::vector<std::byte> mask(count);
    for (std::byte& b : mask) b = static_cast<std::byte>(random() & 1U);
    ASSERT_NO_FATAL_FAILURE(expect_alike(Codec::Bits, 1, mask, static_cast<Bytes>((count + 7) / 8)));
    mask[count / 2] = std::byte{2};
    const Bytes bytes = *code_bytes(Codec::Bits, 1, std::ssize(mask));
    EXPECT_FALSE(encode(Codec::Bits, 1, tensor_of(mask), at::empty({bytes}, at::kByte)));
  }
}

TEST(TensorCodec, NarrowsIntegersToWhatTheLargestNeeds) {
  const auto expect_width = [](const at::Tensor& numbers, std::int64_t width) {
    const auto element = static_cast<std::size_t>(numbers.element_size());
    const at::Tensor contents = numbers.view(at::kByte), to = at::empty({numbers.numel() * width}, at::kByte);
    ASSERT_EQ(narrowed_bytes(element, contents), numbers.numel() * width);
    if (width == numbers.element_size()) return;
    ASSERT_TRUE(encode(Codec::Narrow, element, contents, to));
    const at::Tensor back = at::empty_like(contents);
    decode(Codec::Narrow, element, to, back);
    EXPECT_TRUE(at::equal(back, contents));
    const at::Tensor half = to.narrow(0, 0, to.numel() / 2);
    if (width > 1) {
      EXPECT_FALSE(encode(Codec::Narrow, element, contents, half)) << "as other steps may have larger ones";
    }
  };
  for (const c10::ScalarType type : {at::kLong, at::kInt}) {
    const auto up_to = [&](std::int64_t low, std::int64_t high) {
      at::Tensor all = at::randint(low, high + 1, {1001}, at::kLong);
      all[17] = low;
      all[18] = high;
      return all.to(type);
    };
    expect_width(up_to(-128, 127), 1);
    expect_width(up_to(-128, 128), 2);
    expect_width(up_to(-129, 0), 2);
    expect_width(up_to(-32768, 32767), 2);
    expect_width(up_to(0, 32768), 4);
    expect_width(up_to(-2147483648LL, 2147483647), 4);
  }
  expect_width(at::full({1000}, 2147483648LL, at::kLong), 8);
}

TEST(TensorCodec, TakesAPieceBesideWhatItWrites) {
  DeviceMemory& memory = device_memory(c10::kCPU);
  for (const Codec codec : kLossy) {
    const at::Tensor contents = at::randn({8 * 1024 * 1024}).view(at::kByte);
    const at::Tensor to = at::empty({*code_bytes(codec, sizeof(float), contents.numel())}, at::kByte);
    const Bytes before = memory.stats().allocated;
    memory.reset_peak();
    ASSERT_TRUE(encode(codec, sizeof(float), contents, to));
    decode(codec, sizeof(float), to, contents);
    EXPECT_LE(memory.stats().allocated_peak - before, contents.numel() / 3) << static_cast<int>(codec);
    EXPECT_EQ(memory.stats().allocated, before);
  }
}

TEST(TensorCodec, TakesNoMoreThanTheRoomThereIs) {
  const at::Tensor contents = at::randint(0, 2, {1000}, at::kByte);
  for (const Bytes room : {0, 1, 100, 127})
    EXPECT_FALSE(encode(Codec::Bits, 1, contents, at::empty({room}, at::kByte)));
  EXPECT_TRUE(encode(Codec::Bits, 1, contents, at::empty({1000}, at::kByte)));
  const at::Tensor numbers = at::arange(100, at::kLong), wide = numbers.view(at::kByte);
  EXPECT_FALSE(encode(Codec::Narrow, 8, wide, at::empty({99}, at::kByte)));
  for (const Bytes room : {100, 199, 200, 350, 700, 790}) {
    const at::Tensor to = at::empty({room}, at::kByte), back = at::empty_like(wide);
    EXPECT_TRUE(encode(Codec::Narrow, 8, wide, to));
    decode(Codec::Narrow, 8, to, back);
    EXPECT_TRUE(at::equal(back, wide)) << room;
  }
  EXPECT_FALSE(encode(Codec::Narrow, 8, wide.narrow(0, 0, 790), at::empty({700}, at::kByte))) << "no whole numbers";
  EXPECT_FALSE(encode(Codec::Zeros, 4, wide, at::empty({8000}, at::kByte)));
}

TEST(TensorCodec, KnowsWhatSuitsIt) {
  EXPECT_EQ(code_bytes(Codec::Zeros, 4, 4000), std::nullopt);
  EXPECT_EQ(code_bytes(Codec::Exponents, 4, 4000), std::nullopt);
  EXPECT_EQ(code_bytes(Codec::Narrow, 8, 4000), std::nullopt) << "it depends";
  EXPECT_EQ(code_bytes(Codec::BFloat16, 2, 4000), std::nullopt) << "they are bf16";
  EXPECT_EQ(code_bytes(Codec::Int8, 8, 4000), std::nullopt);
  EXPECT_EQ(code_bytes(Codec::Int8, 4, 4001), std::nullopt);
  EXPECT_EQ(code_bytes(Codec::Bits, 1, 0), std::nullopt);
}

}  // namespace
}  // namespace snug::memory
