#include "snug/memory/byte_tensor.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/memory/device_memory.h"

namespace snug::memory {
namespace {

TEST(ByteTensor, IsTheStorageItselfAndTakesNoMemory) {
  const at::Tensor x = torch::arange(6, at::kFloat).reshape({2, 3});
  DeviceMemory& memory = device_memory(c10::kCPU);
  const Bytes before = memory.stats().allocated;
  const at::Tensor bytes = byte_tensor(x.storage(), 12);
  EXPECT_EQ(memory.stats().allocated, before);
  EXPECT_EQ(bytes.scalar_type(), at::kByte);
  EXPECT_EQ(bytes.sizes(), at::IntArrayRef({12}));
  EXPECT_EQ(bytes.data_ptr(), x.data_ptr());
  bytes.zero_();
  EXPECT_TRUE(x.flatten().slice(0, 0, 3).eq(0).all().item<bool>());
  EXPECT_EQ(x.flatten()[3].item<float>(), 3.0F);
  EXPECT_EQ(x._version(), 0) << "whose version tells nothing of it";
}

TEST(ByteTensor, IsWrittenAndCopiedLikeAnyOther) {
  const at::Tensor x = torch::randn({8}), y = torch::zeros({8});
  byte_tensor(y.storage(), 32).copy_(byte_tensor(x.storage(), 32));
  EXPECT_TRUE(x.equal(y));
  EXPECT_FALSE(byte_tensor(x.storage(), 32).clone().is_alias_of(x));
}

}  // namespace
}  // namespace snug::memory
