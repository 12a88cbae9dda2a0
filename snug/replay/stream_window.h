#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/contents_room.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/stream_mark.h"
#include "snug/memory/tier_room.h"
#include "snug/memory/tiers.h"
#include "snug/plan/run/window_book.h"
#include "snug/plan/run/window_cost.h"
#include "snug/record/step_clock.h"
#include "snug/record/unseen.h"
#include "snug/replay/step_kind.h"
#include "snug/replay/uses_log.h"
#include "snug/replay/window_slab.h"

namespace snug::replay {

/// Storages of one device whose contents are in a tier, and in a window of the device's memory while somebody uses
/// them: carries out what a WindowBook says. The window is one block of memory, whatever is in it. What uses more at
/// once than the window holds takes memory of its own until it is over. Any thread; each uses what it has begun with.
class StreamWindow final : public memory::ContentsOwner, public std::enable_shared_from_this<StreamWindow> {
 public:
  StreamWindow(c10::Device device, std::shared_ptr<memory::Tiers> tiers)
      : device_(device), tiers_(std::move(tiers)), book_({}) {}

  /// The contents leave the device's memory. Throws Error where no tier has room, and the storage is as before.
  void add(const c10::Storage& storage);
  /// For that room, which has as many bytes.
  void add(const c10::Storage& storage, std::shared_ptr<memory::ContentsRoom> room);
  /// What rooms hold has been changed there: what the window has of it is given up. None may be in use.
  void forget_copies();
  /// The same of one that may stay where it is, if there is no room, which is counted.
  void add_if_there_is_room(const c10::Storage& storage);
  /// For storages of one size that come one after the other, as the gradients of a parameter do: a number with room in
  /// a tier, which a storage may have, until it goes, and then another. Throws Error where there is none.
  std::int32_t reserve(Bytes bytes);
  /// The number and its room are for others again, once no storage has it.
  void give_up_reserved(std::int32_t which);
  /// The contents of the storage, which is of that size, leave: for the window, where they may stay until they are
  /// used, or for the tier. Throws Error where they cannot be written, or another has the number, and the storage is as
  /// before.
  void give(const c10::Storage& storage, std::int32_t which);
  /// From here on the window is that, empty. None may be in use. 0 bytes: none, and its memory is given back. Throws
  /// where there is no memory for it.
  void open(plan::Window window);
  /// Those that are left have their contents in memory of their own, as they had before add(). Throws UsageError, and
  /// nothing has changed, where the device's limit has no room for them; where there is no memory, or they cannot be
  /// read: those that are back are, and the others as before.
  void bring_back();

  /// Somebody is about to use these, each named once, until end(), in the device's current stream. Throws, and none is
  /// in use, where there is no memory or contents cannot be read.
  void begin(std::span<const plan::StreamedUse> uses);
  void end(std::span<const plan::StreamedUse> uses) noexcept;
  /// A step of that kind begins: what the last one of the kind has used is expected to be used again.
  void next_step(StepKind kind);

  /// What a step uses, for who records it: call(UsesLog&), while nobody uses anything.
  template <class Call>
  auto with_uses(const Call& call) {
    const std::lock_guard lock(mutex_);
    return call(uses_);
  }
  /// What each takes in a window, by number; none for those that are gone.
  [[nodiscard]] std::vector<Bytes> places() const;

  void hold(std::int32_t which, memory::Access access) override;
  void release(std::int32_t which) noexcept override;
  void forget(std::int32_t which) noexcept override;

  struct Totals {
    Bytes bytes = 0;              ///< of all storages
    Bytes on_disk = 0;            ///< of them; the others are on the host
    Bytes without_room = 0;       ///< made since, as an optimizer's state, and kept on the device, as no tier had room
    Bytes most_at_once = 0;       ///< of those that were used together, as places are rounded
    Bytes in = 0, out = 0;        ///< that were copied
    std::int64_t came = 0;        ///< storages,
    std::int64_t came_ahead = 0;  ///< of them before their use,
    std::int64_t outside = 0;     ///< and beside the window
  };
  [[nodiscard]] Totals totals() const;
  [[nodiscard]] plan::Window window() const;
  [[nodiscard]] c10::Device device() const noexcept { return device_; }
  /// Whether gradients of that one may leave, too.
  [[nodiscard]] bool takes_gradients(std::int32_t which) const;
  /// Whether it is the number of a reserve() of so many bytes, and no storage has it now.
  [[nodiscard]] bool is_free(std::int32_t which, Bytes bytes) const;

 private:
  struct Streamed {
    c10::StorageImpl* storage;  // lives at least until forget() has the mutex; null: none has the number now
    Bytes bytes;
    std::shared_ptr<memory::ContentsRoom> room;
    bool dirty = false;                  // the window has newer contents than the room
    bool lost = false;                   // it could not be read
    memory::StreamMark arriving{};       // until it was used
    std::vector<c10::Stream> streams{};  // that has used it, of an accelerator
    c10::Storage outside{};              // memory of its own
    int users = 0;
    bool reserved = false;  // for other storages after this one
    // Without it LibTorch may let go of the last reference without looking whether lock() has made another.
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> weak{};
  };
  Streamed& at(std::int32_t which) { return *all_[static_cast<std::size_t>(which)]; }
  /// What was there, which is to go without the mutex: with a room tensors may go that have rooms here, too.
  using Gone = std::vector<std::unique_ptr<Streamed>>;
  [[nodiscard]] std::shared_ptr<memory::TierRoom> room_for(Bytes bytes);
  std::int32_t add_room(std::shared_ptr<memory::ContentsRoom> room);
  void take(const c10::Storage& storage, std::int32_t which);
  void own(const c10::Storage& storage, std::int32_t which);
  void remove(std::int32_t which, Gone& gone);
  void leave(std::int32_t which, Bytes offset);
  std::vector<memory::StreamMark> make_room(const plan::WindowBook::Place& place);
  void come(const plan::WindowBook::Place& place);
  void used_here(Streamed& s) const;
  void bring_outside(std::int32_t which, std::unique_lock<std::mutex>& lock);
  void begin_one(std::int32_t which, std::unique_lock<std::mutex>& lock);
  bool have_room_together(std::span<const plan::StreamedUse> uses);
  void bring_together(std::span<const plan::StreamedUse> uses);
  bool begin_inside(std::span<const plan::StreamedUse> uses, std::unique_lock<std::mutex>& lock,
                    std::vector<std::int32_t>& begun);
  void begin_all(std::span<const plan::StreamedUse> uses, std::unique_lock<std::mutex>& lock,
                 std::vector<std::int32_t>& begun);
  void arrive(const plan::StreamedUse& use);
  void give_up(std::int32_t which);
  void end_one(std::int32_t which) noexcept;
  void check_room_for_all() const;
  void bring(std::span<const plan::StreamedUse> uses, std::unique_lock<std::mutex>& lock);
  void empty_window(plan::Window next);

  const c10::Device device_;
  const std::shared_ptr<memory::Tiers> tiers_;
  mutable std::mutex mutex_;  // of what follows
  plan::WindowBook book_;
  std::vector<std::unique_ptr<Streamed>> all_;  // by number; gone ones are null
  WindowSlab slab_;
  UsesLog uses_;
  Bytes in_use_ = 0;  // as places are rounded
  Totals totals_;
};

}  // namespace snug::replay
