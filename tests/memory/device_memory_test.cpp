// Which device is meant: its index is found once; and when its memory was handed out.
#include "snug/memory/device_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "tests/base/fault.h"

namespace snug::memory {
namespace {

thread_local c10::DeviceIndex t_in_use = 0;

/// Two devices of a type that nothing else here has, of which each thread uses one.
struct TwoDevices final : c10::impl::NoOpDeviceGuardImpl<c10::kPrivateUse1> {
  c10::Device getDevice() const override { return {c10::kPrivateUse1, t_in_use}; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
};

TEST(WithIndex, IsTheOneInUseAtThatMoment) {
  static const TwoDevices devices;
  const c10::impl::DeviceGuardImplRegistrar registered(c10::kPrivateUse1, &devices);
  t_in_use = 1;
  const c10::Device found = with_index(c10::kPrivateUse1);
  t_in_use = 0;
  EXPECT_EQ(found, c10::Device(c10::kPrivateUse1, 1));
  EXPECT_EQ(with_index(found), found);
  EXPECT_EQ(with_index(c10::kPrivateUse1).index(), 0);
}

TEST(WithIndex, TheCpuHasNone) {
  EXPECT_EQ(with_index(c10::Device(c10::kCPU, 0)), c10::Device(c10::kCPU));
  EXPECT_EQ(&device_memory(c10::Device(c10::kCPU, 0)), &device_memory(c10::kCPU));
}

TEST(WithIndex, LeavesADeviceThatIsNotThereToWhoeverAsksForItsMemory) {
  EXPECT_FALSE(with_index(c10::kXLA).has_index());
  EXPECT_NE(snug::testing::fault([] { (void)device_memory(c10::Device(c10::kXLA, 3)); }).find("no backend for xla:3"),
            std::string::npos);
}

TEST(AllocatedSince, GoesByTheMemoryThatAStorageHasNow) {
  const at::Tensor before = at::empty({100});
  std::array<float, 4> own{};
  const AllocationTime then = allocation_time();
  const at::Tensor after = at::empty({100}), borrowed = at::from_blob(own.data(), {4});
  EXPECT_FALSE(allocated_since(before.storage(), then));
  EXPECT_TRUE(allocated_since(after.storage(), then));
  EXPECT_FALSE(allocated_since(after.storage(), allocation_time()));
  EXPECT_FALSE(allocated_since(borrowed.storage(), then)) << "no memory of ours";
  EXPECT_FALSE(allocated_since(at::empty({4}, at::kMeta).storage(), then)) << "nor a device with a backend";
  at::Tensor other_thread;
  std::thread([&] { other_thread = at::empty({100}); }).join();
  EXPECT_TRUE(allocated_since(other_thread.storage(), then));
  before.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(400));
  EXPECT_TRUE(allocated_since(before.storage(), then)) << "as a weight's that was freed and is gathered again";
}

}  // namespace
}  // namespace snug::memory
