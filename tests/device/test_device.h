#pragma once

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include <vector>

#include "snug/memory/device_memory.h"

namespace snug::testing {

/// The device that tests make their tensors on: SNUG_TEST_DEVICE, "cpu" unless it is set. When it is another, factories
/// that are told no device make tensors there in programs that are linked with factories_there (for those that are
/// given numbers, such as torch::tensor, a test says it itself), as with torch.set_default_device in Python.
c10::Device test_device();

/// It, the CPU, and the others of its type.
std::vector<c10::Device> test_devices();

/// What is allocated of it once autograd's threads have let go of what they had: those of accelerators do so a moment
/// after backward() has returned.
Bytes settled(const memory::DeviceMemory& memory);

/// The memory of test_device(), settled.
memory::DeviceMemory& test_memory();

}  // namespace snug::testing

/// Skips a test of what only the CPU has, and says what.
#define SNUG_ONLY_ON_THE_CPU(what) \
  if (!snug::testing::test_device().is_cpu()) GTEST_SKIP() << "only the CPU has " << (what)
