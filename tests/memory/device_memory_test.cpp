// Which device is meant: its index is found once.
#include "snug/memory/device_memory.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace snug::memory
