#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "snug/described/stream_clock.h"
#include "snug/memory/accelerator_memory.h"

namespace snug::described {

/// Memory of a device that is not here: addresses, with nothing behind them. Counted as LibTorch's allocator for CUDA
/// rounds blocks; what is free is kept by nobody. Any thread.
class AddressSupply final : public memory::Supply {
 public:
  /// `clock`: of the device. It must outlive this.
  AddressSupply(c10::Device device, const StreamClock& clock) : device_(device), clock_(clock) {}

  /// What it has in all, and what it is called.
  void become(Bytes capacity, std::string model);
  /// As long as somebody needs that, it has as much as is asked for.
  void lift_capacity() { ++lifted_; }
  void lower_capacity() { --lifted_; }

  c10::DataPtr take(std::size_t bytes) override;
  void give(void* data) noexcept override;
  [[nodiscard]] Bytes rounded(Bytes bytes) const override;
  [[nodiscard]] Bytes reserved() const override { return reserved_; }
  void limit_reserved(std::optional<Bytes> limit) override;
  void release_cached() override {}
  [[nodiscard]] memory::MachineMemory capacity() const override;
  [[nodiscard]] std::string model() const override;
  [[nodiscard]] std::optional<double> own_seconds() const override { return clock_.when_done(); }
  [[nodiscard]] bool has_given(const c10::DataPtr& data) const override;

 private:
  const c10::Device device_;
  const StreamClock& clock_;
  std::atomic<int> lifted_ = 0;
  mutable std::mutex mutex_;  // of what follows
  std::unordered_map<void*, Bytes> blocks_;
  std::atomic<Bytes> reserved_ = 0;
  Bytes capacity_ = 0;
  std::optional<Bytes> limit_;
  std::string model_;
};

}  // namespace snug::described
