#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "snug/memory/accelerator_memory.h"
#include "tests/device/simulated_memory.h"

// Accelerators that the CPU plays, so that what makes a device a device can be tested without one: memory of its own,
// streams, events, generators, copies that end later. They are on the HPU key, which CPU builds of LibTorch leave free.
// Kernels are the CPU's, and so are their bits, on memory that the CPU does not take for its own.
namespace snug::testing {

inline constexpr c10::DeviceType kSimulated = c10::DeviceType::HPU;
inline constexpr c10::DeviceIndex kSimulatedDevices = 2;

/// Not in a LibTorch for CUDA, which takes no other accelerator.
bool can_simulate_devices();
/// Puts them in place, for the life of the process. Before the first backward pass, whose engine has a thread for each
/// device. Again does nothing. Throws UsageError where they cannot be.
void install_simulated_devices();

/// The calling thread's.
c10::Device current_simulated_device();
c10::Stream current_simulated_stream(c10::Device device);

SimulatedSupply& simulated_supply(c10::DeviceIndex index);
const at::Generator& simulated_generator(c10::DeviceIndex index);

/// What copies and kernels take on the simulated clock.
struct SimulatedSpeed {
  double bytes_per_second = 16e9;  ///< of the link between a device and the host, each way
  double copy_latency = 10e-6;
  double kernel_seconds = 5e-6;  ///< at least
  double flops_per_second = std::numeric_limits<double>::infinity();
  double memory_bytes_per_second = std::numeric_limits<double>::infinity();
};
void set_simulated_speed(const SimulatedSpeed& speed);
[[nodiscard]] SimulatedSpeed simulated_speed();

/// For the life of the scope they take this.
class SpeedScope {
 public:
  explicit SpeedScope(const SimulatedSpeed& speed) : before_(simulated_speed()) { set_simulated_speed(speed); }
  ~SpeedScope() { set_simulated_speed(before_); }
  SpeedScope(const SpeedScope&) = delete;
  SpeedScope& operator=(const SpeedScope&) = delete;

 private:
  SimulatedSpeed before_;
};

/// For the life of the scope chance says when streams do what they have to do (see Streams).
class OrderOfChance {
 public:
  explicit OrderOfChance(std::uint64_t seed) { Streams::instance().set_order(seed); }
  ~OrderOfChance() { Streams::instance().set_order(std::nullopt); }
  OrderOfChance(const OrderOfChance&) = delete;
  OrderOfChance& operator=(const OrderOfChance&) = delete;
};

/// The copy after so many others between a device and the host, or another device, fails once.
void fail_copy(std::optional<std::int64_t> after);

}  // namespace snug::testing
