// The device itself: memory, streams and events, generators, what LibTorch asks of an accelerator.
#include "tests/device/simulated_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "tests/device/launch.h"
#include "tests/device/pinned_memory.h"
#include "tests/device/simulated_generator.h"

namespace snug::testing {
namespace {

constexpr std::size_t kCount = kSimulatedDevices;

/// What a thread uses.
struct InUse {
  c10::DeviceIndex device = 0;
  std::array<c10::StreamId, kCount> streams{};
};
thread_local InUse t_in_use;
/// Until then nobody is told of them.
std::atomic<bool> g_installed = false;

std::size_t at_index(c10::DeviceIndex index) { return static_cast<std::size_t>(index); }

void free_block(void* data);

struct Memories {
  struct One {
    explicit One(c10::DeviceIndex index) {
      auto made = std::make_unique<SimulatedSupply>(c10::Device(kSimulated, index));
      supply = made.get();
      memory =
          std::make_unique<memory::AcceleratorMemory>(c10::Device(kSimulated, index), std::move(made), &free_block);
    }
    SimulatedSupply* supply;
    std::unique_ptr<memory::AcceleratorMemory> memory;
  };
  std::array<One, kCount> all{One(0), One(1)};
};

Memories::One& memory_of(c10::DeviceIndex index) {
  static auto* const memories = new Memories;  // tensors may outlive main()
  return memories->all.at(at_index(index));
}

memory::DeviceMemory* find(c10::DeviceIndex index) {
  return index >= 0 && index < kSimulatedDevices ? memory_of(index).memory.get() : nullptr;
}

void free_block(void* data) {
  if (data == nullptr) return;
  for (c10::DeviceIndex i = 0; i < kSimulatedDevices; ++i) {
    if (memory_of(i).memory->freed(data)) return;
  }
}

void record_stream(const c10::DataPtr& data, c10::Stream stream) {
  const Memories::One& of = memory_of(data.device().index());
  if (!of.memory->record_stream(data.get_context(), stream)) of.supply->record_stream(data.get_context(), stream);
}

/// LibTorch's allocator of the devices.
class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return memory_of(t_in_use.device).memory->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {
    for (c10::DeviceIndex i = 0; i < kSimulatedDevices; ++i) memory_of(i).memory->release_cached();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { record_stream(data, stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex /*device*/) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex device) override { memory_of(device).memory->reset_peak(); }
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kSimulated; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kSimulated, t_in_use.device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < kSimulatedDevices, "simulated device: there is no ", device);
    t_in_use.device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { t_in_use.device = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return stream(device, t_in_use.streams.at(at_index(index_of(device))));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    static std::atomic<c10::StreamId> made{0};
    return stream(device, ++made);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    t_in_use.streams.at(at_index(stream.device_index())) = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kSimulatedDevices; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    const Ticket ticket = Streams::instance().last(stream);
    if (*event == nullptr) {
      *event = new Ticket(ticket);
    } else {
      *static_cast<Ticket*>(*event) = ticket;
    }
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) Streams::instance().let_wait(stream, *static_cast<Ticket*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || Streams::instance().done(*static_cast<Ticket*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Ticket*>(event);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) Streams::instance().wait_for(*static_cast<Ticket*>(event));
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex /*device*/) const override {
    return (static_cast<Ticket*>(to)->seconds - static_cast<Ticket*>(from)->seconds) * 1e3;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return Streams::instance().done(Streams::instance().last(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override { Streams::instance().wait_for(stream); }
  void synchronizeDevice(const c10::DeviceIndex /*device*/) const override { Streams::instance().wait_for_all(); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data, stream);
  }

 private:
  static c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : t_in_use.device; }
  static c10::Stream stream(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSimulated, index_of(device)), id);
  }
};

C10_REGISTER_GUARD_IMPL(HPU, Guard)

}  // namespace

c10::Device current_simulated_device() { return {kSimulated, t_in_use.device}; }
c10::Stream current_simulated_stream(c10::Device device) {
  return c10::Stream(c10::Stream::UNSAFE, device, t_in_use.streams.at(at_index(device.index())));
}

SimulatedSupply& simulated_supply(c10::DeviceIndex index) { return *memory_of(index).supply; }

const at::Generator& simulated_generator(c10::DeviceIndex index) {
  static const std::array<at::Generator, kCount> all{new_simulated_generator(0), new_simulated_generator(1)};
  return all.at(at_index(index < 0 ? t_in_use.device : index));
}

bool can_simulate_devices() { return !at::detail::getCUDAHooks().isBuilt(); }

void install_simulated_devices() {
  static const bool installed = [] {
    if (!can_simulate_devices()) {
      throw UsageError(
          "simulated device: this LibTorch is for CUDA, beside which it takes no other accelerator; use one for the "
          "CPU alone");
    }
    static Allocator allocator;
    c10::SetAllocator(kSimulated, &allocator);
    memory::add_backend(kSimulated, &find);
    install_scratch_allocator();
    prefer_kernels_of_the_cpu();
    g_installed = true;
    return true;
  }();
  static_cast<void>(installed);
}

namespace {

struct Hooks : at::HPUHooksInterface {
  explicit Hooks(at::HPUHooksArgs /*none*/) {}
  void init() const override {}
  bool hasHPU() const override { return g_installed; }
  bool isBuilt() const override { return g_installed; }
  bool isAvailable() const override { return g_installed; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override {
    return g_installed ? kSimulatedDevices : static_cast<c10::DeviceIndex>(0);
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { t_in_use.device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return t_in_use.device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(t_in_use.device, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return simulated_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_simulated_generator(device < 0 ? t_in_use.device : device);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
};

}  // namespace
}  // namespace snug::testing

namespace at {
using HPUHooks = snug::testing::Hooks;
REGISTER_HPU_HOOKS(HPUHooks)
}  // namespace at
