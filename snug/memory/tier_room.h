#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/stream_mark.h"
#include "snug/memory/tiers.h"

namespace snug::memory {

/// Room in a tier for contents of a device's memory, written and read as often as one likes: bytes, in tensors as
/// byte_tensor() makes them, of that device and as long as the room. The tiers must outlive it. One thread at a time.
class TierRoom {
 public:
  /// `for_memory_at`: on a disk it suits memory that lies in its pages as this address does, which is read and written
  /// without a copy in between. Throws Error when there is none.
  TierRoom(Bytes bytes, c10::Device device, Tiers& tiers, Tier tier, const void* for_memory_at = nullptr);

  /// The copies may go on beside what the device and the host do (see Links): until the mark that is returned, contents
  /// that are written have to stay as they are. Where they cannot be written it tells so, as every read does, and the
  /// room has no contents.
  StreamMark write(const at::Tensor& contents);
  /// From the mark on `contents` have what was written last. Before it they have to stay; it tells so when the contents
  /// cannot be read. The copy begins once all of `after` are reached.
  [[nodiscard]] StreamMark read(const at::Tensor& contents, std::vector<StreamMark> after = {}) const;
  /// It is over when this returns. Throws Error when they cannot be read. On the CPU this takes no memory.
  void read_now(const at::Tensor& contents) const;

  /// Of what was written last.
  [[nodiscard]] const StreamMark& written() const noexcept { return written_; }
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }
  [[nodiscard]] Tier tier() const noexcept { return std::holds_alternative<OnDisk>(place_) ? Tier::Disk : Tier::Host; }
  [[nodiscard]] c10::Device device() const noexcept { return device_; }

 private:
  struct OnDisk {
    SpillFile* file;
    std::shared_ptr<SpillFile::Block> block;  // also of the threads that write and read it
    HostPool* passage = nullptr;              // of an accelerator's contents
  };
  using Place = std::variant<HostPool::Block, OnDisk>;
  StreamMark begin_writing(const at::Tensor& contents);
  static Place place(Bytes bytes, c10::Device device, Tiers& tiers, Tier tier, const void* for_memory_at);

  c10::Device device_;
  Bytes bytes_;
  Links* links_;
  Place place_;
  StreamMark written_;
};

}  // namespace snug::memory
