#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>

namespace snug::record {

/// A thread's autocast: for the CPU and the machine's accelerator whether it is on and which type it casts to, and
/// whether casts of weights are cached.
struct AutocastState {
  struct OfDevice {
    c10::DeviceType type = c10::kCPU;
    bool enabled = false;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    friend bool operator==(const OfDevice&, const OfDevice&) = default;
  };
  std::array<OfDevice, 2> devices;
  std::size_t count = 0;  ///< of the devices: 1 without an accelerator
  bool cache = true;

  /// Returns the calling thread's.
  static AutocastState now();
  /// Whether it is on in the calling thread for any type of device. Costs one look at a thread-local variable.
  static bool any_enabled() noexcept;
  /// Makes it the calling thread's.
  void set() const;

  friend bool operator==(const AutocastState&, const AutocastState&) = default;
};

/// Sets the calling thread's autocast for the life of the scope.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state) { state.set(); }
  ~AutocastScope() { before_.set(); }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_ = AutocastState::now();
};

}  // namespace snug::record
