#include "snug/record/elements_on_host.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "snug/record/contents_hash.h"

namespace snug::record {
namespace {

/// All elements as floats, read in pieces of that many.
std::vector<float> read_all(const ElementsOnHost& elements, Bytes items) {
  std::vector<float> all;
  for (Bytes begin = 0; begin < elements.bytes(); begin += 4 * items) {
    const Bytes length = std::min(4 * items, elements.bytes() - begin);
    std::vector<std::byte> buffer(static_cast<std::size_t>(length));
    const auto read = elements.read(begin, length, buffer.data());
    const auto* const first = reinterpret_cast<const float*>(read.data());
    all.insert(all.end(), first, first + length / 4);
  }
  return all;
}

std::vector<at::Tensor> layouts() {
  const at::Tensor x = torch::arange(2 * 3 * 4 * 5, torch::kFloat).view({2, 3, 4, 5});
  return {x,
          x.permute({0, 2, 3, 1}),
          x.to(at::kFloat, false, true, at::MemoryFormat::ChannelsLast),
          x.slice(1, 1, 3),
          x.slice(3, 1, 5, 2),
          x.transpose(0, 3).slice(1, 0, 2),
          x.select(0, 1).select(1, 2),
          x.narrow(0, 0, 1).expand({3, 3, 4, 5}),
          x.view({-1}).slice(0, 7, 8),
          x.select(0, 0).select(0, 0).select(0, 0).select(0, 3),
          x.slice(0, 0, 0)};
}

TEST(ElementsOnHost, AreThoseOfTheTensorEachAtItsIndex) {
  for (const at::Tensor& tensor : layouts()) {
    SCOPED_TRACE(::testing::Message() << tensor.sizes() << " " << tensor.strides());
    const ElementsOnHost elements(tensor);
    ASSERT_EQ(elements.bytes(), static_cast<Bytes>(tensor.nbytes()));
    const std::vector<float> all = read_all(elements, 1);
    for (std::size_t place = 0; place < all.size(); ++place) {
      at::Tensor element = tensor;
      for (const std::int64_t i : elements.index_of(static_cast<std::int64_t>(place))) element = element.select(0, i);
      ASSERT_EQ(all[place], element.item<float>()) << place;
    }
    for (const Bytes items : {2, 3, 7, 64, 1000}) EXPECT_EQ(read_all(elements, items), all);
  }
}

TEST(ElementsOnHost, OfADenseTensorAreItsMemory) {
  for (const at::Tensor& tensor : layouts()) {
    if (!tensor.is_non_overlapping_and_dense() || tensor.numel() == 0) continue;
    const ElementsOnHost elements(tensor);
    EXPECT_EQ(static_cast<const void*>(elements.read(0, elements.bytes(), nullptr).data()), tensor.const_data_ptr());
  }
}

TEST(ElementsOnHost, HaveHashesByBlock) {
  at::Tensor x = torch::arange(3 * 4096, torch::kFloat).view({3 * 32, 128}).t();
  const auto hashes_now = [&] { return BlockHashes::of(ElementsOnHost(x.slice(0, 0, 64))); };
  const BlockHashes then = hashes_now();
  ASSERT_EQ(then.blocks.size(), 6U);  // of 1,024 elements
  x.index_put_({70, 5}, -1);          // outside of the slice
  EXPECT_EQ(hashes_now().first_difference(then), std::nullopt);
  x.index_put_({63, 40}, -1);  // the last of row 40 in memory, of 64 elements there
  EXPECT_EQ(hashes_now().first_difference(then), 2U);
}

}  // namespace
}  // namespace snug::record
