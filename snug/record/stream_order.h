#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <span>
#include <vector>

#include "snug/memory/stream_mark.h"

namespace snug::record {

/// Keeps a step that uses several streams of an accelerator as safe as it is without replays. LibTorch goes backward in
/// the stream that an operator ran in, and a replay runs there: what it reads may have been made by a replay in another
/// stream; and what a plan drops, which would have lived until backward, may still be read in the stream that was the
/// last to use it. So streams wait for what was replayed in others, and memory is not handed out again before the
/// streams that have used it are done with it (recordStream). Where a device has one stream, and on the CPU, nothing is
/// done but to see that.
///
/// "Current" is the calling thread's. Synchronized by the tape's mutex.
class StreamOrder {
 public:
  /// The current streams are about to use the storages.
  void used(std::span<c10::StorageImpl* const> storages) {
    for (c10::StorageImpl* const storage : storages) used(storage);
  }
  void used(c10::StorageImpl* storage) {
    if (!storage->device().is_cpu()) used_on_its_device(storage);
  }
  /// Something was made on the device, in its current stream.
  void made_on(c10::Device device);
  /// The forward pass is over: streams that are new to the step wait for all of it.
  void forward_over();

  /// Somebody is about to read what a replay may have made on the device: its current stream waits.
  void catch_up(c10::Device device);
  /// A replay is about to run on the device, in its current stream: that waits, and others for it once it is over.
  void enter(c10::Device device);
  /// The replay is over.
  void leave();
  /// A replay: who enters while this lives leaves with it.
  class Scope {
   public:
    explicit Scope(StreamOrder& streams) : streams_(streams) {}
    ~Scope() { streams_.leave(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StreamOrder& streams_;
  };

  /// Accelerators that the step has come to.
  [[nodiscard]] std::vector<c10::Device> devices() const;

  /// Somebody is about to read, in the device's current stream, what any stream of the step may have made: it waits for
  /// all of them.
  void wait_for_all(c10::Device device);
  /// What the device's current stream, or any stream of the step, is given from now on begins once the mark is reached;
  /// the CPU waits. Throws what a thread throws that the mark is of; the second returns whether there was none.
  static void let_wait(c10::Device device, const memory::StreamMark& mark);
  bool let_all_wait(c10::Device device, const memory::StreamMark& mark) noexcept;
  /// The host is about to read what the device's current stream makes: it waits.
  static void finish(c10::Device device);

 private:
  struct Known {
    c10::Stream stream;
    std::uint64_t left_at = 0;  // 0: never
    std::uint64_t waited_at = 0;
    bool entered = false;
  };
  struct OfDevice {
    c10::Device device;
    std::vector<Known> streams;
  };

  void used_on_its_device(c10::StorageImpl* storage);
  OfDevice& of(c10::Device device);
  /// Which is known from then on.
  static Known& current(OfDevice& on);
  Known& caught_up(OfDevice& on);
  static void let_wait(const Known& waits, const Known& other);

  std::vector<OfDevice> devices_;
  std::uint64_t time_ = 0;
};

}  // namespace snug::record
