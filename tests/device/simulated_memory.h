#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "snug/memory/accelerator_memory.h"
#include "tests/device/streams.h"

namespace snug::testing {

/// Hands out the memory of one simulated device as CUDA's caching allocator does: a block that is freed serves the
/// stream that it was taken for again, in that stream's order, and others when it has been given back; one that other
/// streams have used (record_stream()) waits for them first. What is freed is overwritten, in its stream's order, so
/// that who reads it later sees other bits. The device's memory has an end. Any thread.
class SimulatedSupply final : public memory::Supply {
 public:
  explicit SimulatedSupply(c10::Device device) : device_(device) {}

  c10::DataPtr take(std::size_t bytes) override;
  void give(void* data) noexcept override;
  [[nodiscard]] Bytes rounded(Bytes bytes) const override;
  [[nodiscard]] Bytes reserved() const override;
  void limit_reserved(std::optional<Bytes> limit) override;
  void release_cached() override;
  [[nodiscard]] memory::MachineMemory capacity() const override;
  void emptied(void* data, Bytes bytes, c10::Stream stream) override;
  [[nodiscard]] bool has_given(const c10::DataPtr& data) const override;

  /// What another stream than its own does with the block ends before the block serves again.
  void record_stream(const void* data, c10::Stream stream);

  /// From now on the device has so much.
  void set_capacity(Bytes bytes);
  /// The take() after so many others fails, or all from there on, as on a device that is full; nullopt: none.
  struct Failure {
    std::int64_t after = 0;
    bool for_good = false;
  };
  void fail(std::optional<Failure> failure);
  /// Blocks taken so far.
  [[nodiscard]] std::int64_t taken() const;

 private:
  struct Block {
    Bytes bytes = 0;
    c10::Stream stream;
    std::vector<c10::Stream> used_by;
  };
  struct Free {
    void* data;
    std::vector<Ticket> after;
  };

  bool fails_now();
  std::optional<Free> kept_block(Bytes bytes, c10::Stream stream);

  const c10::Device device_;
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;
  std::map<std::pair<c10::StreamId, Bytes>, std::vector<Free>> free_;
  Bytes reserved_ = 0;
  Bytes capacity_ = 1024_GiB;
  std::optional<Bytes> limit_;
  std::optional<Failure> failure_;
  std::int64_t taken_ = 0;
};

}  // namespace snug::testing
