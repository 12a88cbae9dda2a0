#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/contents_room.h"
#include "snug/memory/stream_mark.h"
#include "snug/memory/tiers.h"

namespace snug::memory {

/// Room in a tier. The tiers must outlive it.
class TierRoom final : public ContentsRoom {
 public:
  /// `for_memory_at`: on a disk it suits memory that lies in its pages as this address does, which is read and written
  /// without a copy in between. Throws Error when there is none.
  TierRoom(Bytes bytes, c10::Device device, Tiers& tiers, Tier tier, const void* for_memory_at = nullptr);

  /// By Links.
  StreamMark write(const at::Tensor& contents) override;
  [[nodiscard]] StreamMark read(const at::Tensor& contents, std::vector<StreamMark> after = {}) const override;
  void read_now(const at::Tensor& contents) const override;

  static constexpr Bytes kPart = SpillFile::kPart;
  /// For a thread that is not the room's own: a part of what was written last, kPart long and from a multiple of that
  /// on, or what there is behind it. Of the CPU, into its memory.
  void read_part(Bytes from, const at::Tensor& contents) const;

  [[nodiscard]] const StreamMark& written() const noexcept override { return written_; }
  [[nodiscard]] Bytes bytes() const noexcept override { return bytes_; }
  [[nodiscard]] Bytes on_disk() const noexcept override { return tier() == Tier::Disk ? bytes_ : 0; }
  [[nodiscard]] bool takes_gradients() const noexcept override { return true; }
  [[nodiscard]] Tier tier() const noexcept { return std::holds_alternative<OnDisk>(place_) ? Tier::Disk : Tier::Host; }
  [[nodiscard]] c10::Device device() const noexcept { return device_; }

 private:
  struct OnDisk {
    SpillFile* file;
    std::shared_ptr<SpillFile::Block> block;  // also of the threads that write and read it
    HostPool* passage = nullptr;              // of an accelerator's contents
  };
  using Place = std::variant<HostPool::Block, OnDisk>;
  /// Contents are written whole, or read, whichever thread does it.
  struct Guards {
    std::mutex marks;            // of `written_`, which is read by other threads, too
    std::shared_mutex contents;  // never held while something else is waited for
  };
  StreamMark begin_writing(const at::Tensor& contents);
  static Place place(Bytes bytes, c10::Device device, Tiers& tiers, Tier tier, const void* for_memory_at);

  c10::Device device_;
  Bytes bytes_;
  Links* links_;
  Place place_;
  StreamMark written_;
  std::shared_ptr<Guards> guards_ = std::make_shared<Guards>();  // tasks have it, too
};

}  // namespace snug::memory
