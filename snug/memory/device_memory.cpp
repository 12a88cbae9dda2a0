#include "snug/memory/device_memory.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include <array>
#include <atomic>

#include "snug/base/errors.h"
#include "snug/memory/cpu_memory.h"
#include "snug/memory/cuda_memory.h"

namespace snug::memory {
namespace {

std::atomic<AllocationTime> g_time{0};

/// By type; null without a backend.
std::atomic<FindMemory>& backend(c10::DeviceType type) {
  static auto* const all = [] {
    auto* const made = new std::array<std::atomic<FindMemory>, c10::COMPILE_TIME_MAX_DEVICE_TYPES>{};
    made->at(static_cast<std::size_t>(c10::kCUDA)) = &cuda_memory;
    return made;
  }();
  return all->at(static_cast<std::size_t>(type));
}

/// Null without a backend.
DeviceMemory* find_memory(c10::Device device) {
  if (device.is_cpu()) return &CpuMemory::instance();
  const FindMemory find = backend(device.type());
  return find != nullptr ? find(with_index(device).index()) : nullptr;
}

}  // namespace

AllocationTime allocation_time() noexcept { return g_time.load(std::memory_order_acquire); }
AllocationTime next_allocation_time() noexcept { return g_time.fetch_add(1, std::memory_order_acq_rel) + 1; }

c10::Device device_named(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {  // which lists types of devices by the dozen
    throw UsageError(fmt::format("\"{}\" names no device; write cpu, or an accelerator such as cuda or cuda:1", name));
  }
}

c10::Device with_index(c10::Device device) {
  if (device.is_cpu()) return c10::kCPU;
  if (device.has_index() || !c10::impl::hasDeviceGuardImpl(device.type())) return device;
  const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
  return guard->deviceCount() > 0 ? guard->getDevice() : device;
}

void add_backend(c10::DeviceType type, FindMemory find) { backend(type) = find; }

DeviceMemory& device_memory(c10::Device device) {
  if (DeviceMemory* memory = find_memory(device)) return *memory;
  std::string others;
  for (const c10::Device& known : devices()) others += (others.empty() ? "" : ", ") + known.str();
  throw UsageError(
      fmt::format("memory: no backend for {} here; devices with one: {}{}", device.str(), others,
                  device.is_cuda() && !built_for_cuda()
                      ? "; snug was built without CUDA: build it with a LibTorch for CUDA, beside which pip install "
                        "nvidia-cuda-crt puts the headers that it lacks"
                      : ""));
}

std::vector<c10::Device> devices() {
  std::vector<c10::Device> all{c10::kCPU};
  const auto accelerator = at::getAccelerator();
  const c10::DeviceIndex count = accelerator ? at::accelerator::deviceCount() : static_cast<c10::DeviceIndex>(0);
  for (c10::DeviceIndex i = 0; i < count; ++i) {
    if (const c10::Device device(*accelerator, i); find_memory(device) != nullptr) all.push_back(device);
  }
  return all;
}

bool allocated_since(const c10::Storage& storage, AllocationTime time) {
  const DeviceMemory* const memory = find_memory(storage.device());
  return memory != nullptr && memory->allocated_since(storage, time);
}

void retag(const c10::Storage& storage, Tag tag) {
  if (DeviceMemory* const memory = find_memory(storage.device())) memory->retag(storage, tag);
}

void adopt(const c10::Storage& storage) {
  if (DeviceMemory* const memory = find_memory(storage.device())) memory->adopt(storage);
}

}  // namespace snug::memory
