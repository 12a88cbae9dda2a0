#include "snug/described/device_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "snug/base/errors.h"

namespace snug::described {
namespace {

TEST(DeviceDescription, IsKnownByNameInAnyCase) {
  for (const DeviceDescription& one : known_devices()) {
    EXPECT_EQ(describe(one.name).memory, one.memory);
    EXPECT_GT(one.flops, one.flops_of_fp32) << one.name;
    EXPECT_GT(one.bytes_per_second, one.host_bytes_per_second) << one.name;
    EXPECT_EQ(one.usable(), one.memory - 512_MiB) << one.name;
  }
  EXPECT_EQ(describe("RTX-4090").name, "rtx-4090");
  EXPECT_EQ(describe("H100").name, "h100-sxm");
  EXPECT_EQ(describe("a100").name, "a100-80gb");
}

TEST(DeviceDescription, SaysHowDevicesOfAServerAreLinked) {
  for (const DeviceDescription& one : known_devices()) {
    if (!one.server) continue;
    EXPECT_GT(one.server->devices, 1) << one.name;
    EXPECT_GT(one.server->link_bytes_per_second, 2 * one.server->network_bytes_per_second) << one.name;
    EXPECT_LT(one.server->link_bytes_per_second, one.bytes_per_second) << one.name;
  }
  EXPECT_EQ(describe("h100").server->link_bytes_per_second, 450e9);
  EXPECT_FALSE(describe("rtx-4090").server);
}

TEST(DeviceDescription, MayBeWhatSomebodysOwnCanDo) {
  const DeviceDescription own = describe("312TFLOPS/2.5TBps/80GiB");
  EXPECT_EQ(own.flops, 312e12);
  EXPECT_EQ(own.flops_of_fp32, 312e12);
  EXPECT_EQ(own.bytes_per_second, 2.5e12);
  EXPECT_EQ(own.memory, 80_GiB);
  EXPECT_EQ(describe("2PFLOPS/900GBps/16GB").flops, 2e15);
  EXPECT_EQ(describe("500GFLOPS/900MBps/16GB").bytes_per_second, 900e6);
  EXPECT_EQ(describe("312TFLOPS/2GB/s/80GiB").bytes_per_second, 2e9);
  EXPECT_EQ(describe("312TFLOPS/2Tbps/80GiB").bytes_per_second, 2e12 / 8) << "bits";
}

TEST(DeviceDescription, OfAnotherTextIsRefusedWithThoseThatAreKnown) {
  for (const char* const text :
       {"", "rtx", "312/2TBps/80GiB", "312tflops/2TBps/80GiB", "312TFLOPS/0TBps/80GiB", "312TFLOPS/2TBps",
        "312TFLOPS/2TBps/", "0TFLOPS/2TBps/80GiB", "-1TFLOPS/2TBps/80GiB", "312TFLOPS/2TB/80GiB",
        "312TFLOPS/2TBps/much", "312TFLOPS/2TBps/512MiB", "nanTFLOPS/2TBps/80GiB"}) {
    try {
      (void)describe(text);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(),
                  ::testing::AllOf(::testing::HasSubstr("\"" + std::string(text) + "\""),
                                   ::testing::HasSubstr("a100-80gb"), ::testing::HasSubstr("312TFLOPS/2TBps/80GiB")));
    }
  }
}

}  // namespace
}  // namespace snug::described
