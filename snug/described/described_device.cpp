#include "snug/described/described_device.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>

#include "snug/base/errors.h"
#include "snug/described/address_supply.h"
#include "snug/described/operators.h"

namespace snug::described {
namespace {

const c10::Device kDevice(kDescribed, 0);
thread_local c10::StreamId t_stream = 0;

void free_block(void* data);

struct There {
  DeviceDescription description;
  StreamClock clock;
  AddressSupply* supply = new AddressSupply(kDevice, clock);  // the memory's
  memory::AcceleratorMemory memory{kDevice, std::unique_ptr<AddressSupply>(supply), &free_block};
};

There& there() {
  static auto* const one = new There;  // tensors may outlive main()
  return *one;
}

void free_block(void* data) {
  if (data != nullptr) there().memory.freed(data);
}

memory::DeviceMemory* find(c10::DeviceIndex index) { return index == 0 ? &there().memory : nullptr; }

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override { return there().memory.allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/) const override {}
};

/// An event is a moment of the clock.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kDescribed; }
  c10::Device exchangeDevice(c10::Device /*device*/) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "described device: there is one, and no ", device);
  }
  void uncheckedSetDevice(c10::Device /*device*/) const noexcept override {}
  c10::Stream getStream(c10::Device /*device*/) const override { return stream(t_stream); }
  c10::Stream getDefaultStream(c10::Device /*device*/) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device /*device*/, int /*priority*/) const override {
    static std::atomic<c10::StreamId> made{0};
    return stream(++made);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = stream(t_stream);
    t_stream = to.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  void record(void** event, const c10::Stream& in, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    const double now = there().clock.at(in.id());
    if (*event == nullptr) *event = new double;
    *static_cast<double*>(*event) = now;
  }
  void block(void* event, const c10::Stream& in) const override {
    if (event != nullptr) there().clock.let_wait(in.id(), *static_cast<double*>(event));
  }
  bool queryEvent(void* /*event*/) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<double*>(event);
  }
  void synchronizeEvent(void* /*event*/) const override {}
  double elapsedTime(void* from, void* to, const c10::DeviceIndex /*device*/) const override {
    constexpr double kMilli = 1e3;
    return (*static_cast<double*>(to) - *static_cast<double*>(from)) * kMilli;
  }
  bool queryStream(const c10::Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
  void synchronizeDevice(const c10::DeviceIndex /*device*/) const override {}
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/, const c10::Stream& /*stream*/) const override {}

 private:
  static c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
};

}  // namespace

c10::Device install(const DeviceDescription& description) {
  There& device = there();
  if (const Bytes taken = device.memory.stats().allocated; taken > 0) {
    throw UsageError(
        fmt::format("described device: {} of tensors are on {}; let go of them before {} comes in its place",
                    format_bytes(taken), device.description.name, description.name));
  }
  device.description = description;
  device.supply->become(description.usable(), description.name);
  static const bool installed = [] {
    static Allocator allocator;
    static Guard guard;
    c10::SetAllocator(kDescribed, &allocator);
    static const c10::impl::DeviceGuardImplRegistrar registered(kDescribed, &guard);
    memory::add_backend(kDescribed, &find);
    install_operators();
    return true;
  }();
  static_cast<void>(installed);
  return kDevice;
}

const DeviceDescription& description() { return there().description; }
StreamClock& stream_clock() { return there().clock; }
c10::StreamId current_stream() { return t_stream; }

AnyAmountOfMemory::AnyAmountOfMemory() { there().supply->lift_capacity(); }
AnyAmountOfMemory::~AnyAmountOfMemory() { there().supply->lower_capacity(); }

}  // namespace snug::described
