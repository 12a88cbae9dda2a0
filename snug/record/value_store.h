#pragma once

#include <c10/core/Storage.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/run/ledger.h"
#include "snug/plan/step/action.h"
#include "snug/plan/step/dataflow.h"
#include "snug/record/image_store.h"
#include "snug/record/moved_contents.h"
#include "snug/record/saved_tensor.h"
#include "snug/record/seen_version.h"
#include "snug/record/tape_mutex.h"
#include "snug/record/tape_observer.h"

namespace snug::record {

/// No backward pass; LibTorch numbers them from 0.
inline constexpr int kNoPass = -1;

/// The values of a tape, contents of storages by version: which operators read and make them (Dataflow), which are
/// resident (Ledger), and the contents. A value's storage is set exactly while the ledger calls it resident: this is
/// kept here and nowhere else, so that nobody else changes the ledger.
///
/// Synchronized by the tape's mutex, which it lends while it copies or reads contents.
class ValueStore {
 public:
  ValueStore(TapeMutex& mutex, const TapeObservers& observers, StreamOrder& streams);
  ValueStore(const ValueStore&) = delete;
  ValueStore& operator=(const ValueStore&) = delete;

  [[nodiscard]] const plan::Dataflow& flow() const noexcept { return flow_; }
  /// Where contents go that leave the device's memory; before any does. Others may share them.
  void use(std::shared_ptr<memory::Tiers> tiers) { moved_.use(std::move(tiers)); }
  /// For operators and segments; values come by add_leaf and add_output.
  [[nodiscard]] plan::Dataflow& flow() noexcept { return flow_; }
  [[nodiscard]] const plan::Ledger& ledger() const noexcept { return ledger_; }

  // --- values ------------------------------------------------------------------------------------------------------

  /// From now on leaves are not held: the program may free them.
  void hold_no_leaves() noexcept { holds_leaves_ = false; }
  /// What the storage holds now becomes a leaf, and is held, where leaves are.
  plan::ValueId add_leaf(const c10::Storage& storage);
  /// A leaf that is read and not held: it is from now on, where leaves are.
  void hold_leaf(plan::ValueId value, const c10::Storage& storage) {
    if (holds_leaves_) hold(value, storage);
  }
  /// The newest operator made what the storage holds now; it is absent. `overwrites` as in plan::Output.
  plan::ValueId add_output(const c10::Storage& storage, plan::ValueId overwrites);
  /// An operator's value becomes a leaf: something unseen filled it.
  void make_leaf(plan::ValueId value);

  /// The value that the storage holds now, or kNoValue.
  [[nodiscard]] plan::ValueId in(c10::StorageImpl* storage) const {
    const auto found = current_.find(storage);
    return found == current_.end() ? plan::kNoValue : found->second;
  }
  /// What it holds from now on is not known.
  void forget_storage(c10::StorageImpl* storage) { current_.erase(storage); }
  /// The storage that it is, or was, in: an address that is not used again while the store lives.
  [[nodiscard]] c10::StorageImpl* address(plan::ValueId value) const { return at(value).identity._unsafe_get_target(); }

  [[nodiscard]] Bytes nbytes(plan::ValueId value) const { return at(value).nbytes; }
  [[nodiscard]] c10::Device device(plan::ValueId value) const { return at(value).device; }
  /// What a region's policy said of it.
  [[nodiscard]] plan::Must must(plan::ValueId value) const { return at(value).must; }
  void set_must(plan::ValueId value, plan::Must must) { at(value).must = must; }
  /// What becomes of it once a saved tensor, or a replay, will need it, where it does not stay as it is.
  [[nodiscard]] std::optional<plan::Action> away(plan::ValueId value) const { return at(value).away; }
  void let_go_away(plan::ValueId value, plan::Action how) { at(value).away = how; }
  /// Whether it is memory without contents, as of `empty`, that nothing which was seen has written yet.
  [[nodiscard]] bool unfilled(plan::ValueId value) const { return at(value).unfilled; }
  void set_unfilled(plan::ValueId value) { at(value).unfilled = true; }
  /// Whether operators have written its whole storage, so that no byte there is what memory happened to hold: a loss
  /// that reduces in place, say, shrinks its result in memory of which it writes one number.
  [[nodiscard]] bool all_written(plan::ValueId value) const { return at(value).leaf || at(value).all_written; }
  void set_all_written(plan::ValueId value) { at(value).all_written = true; }
  /// Whether a recorded operator has read it, or a saved tensor stands for it.
  [[nodiscard]] bool was_read(plan::ValueId value) const { return at(value).read; }
  void set_read(plan::ValueId value) { at(value).read = true; }
  /// The type of the numbers that all its saved tensors show; Undefined where they differ, or there are none.
  [[nodiscard]] c10::ScalarType saved_as(plan::ValueId value) const {
    return at(value).saved_as.value_or(c10::ScalarType::Undefined);
  }
  void set_saved_as(plan::ValueId value, c10::ScalarType type);
  /// Whether an operator made the storage, be it that something unseen has written it since.
  [[nodiscard]] bool of_result(plan::ValueId value) const { return !flow_.is_leaf(value) || at(value).of_result; }
  void set_of_result(plan::ValueId leaf) { at(leaf).of_result = true; }
  /// Whether the storage was there before any recorded operator wrote it.
  [[nodiscard]] bool was_there(plan::ValueId value) const { return at(value).was_there; }

  // --- contents ----------------------------------------------------------------------------------------------------

  /// The storage of a resident value.
  [[nodiscard]] const c10::Storage& storage(plan::ValueId value) const { return at(value).storage; }
  /// Whether nobody else writes it: a leaf that is a copy, or has left the device's memory.
  [[nodiscard]] bool copied(plan::ValueId value) const { return at(value).leaf && at(value).copied; }

  /// The value is resident in this storage until nobody needs it.
  void hold(plan::ValueId value, const c10::Storage& storage);
  /// A replay has made it again, or fetched it, and it is resident until its saved tensors have been unpacked.
  void cache(plan::ValueId value, c10::Storage storage);
  /// The value is absent: its storage is overwritten, or is returned to somebody who will do that.
  c10::Storage take(plan::ValueId value);
  /// The value is absent: what is in its storage is not its contents any more.
  void discard(plan::ValueId value);
  /// Moves a value's contents out of the device's memory: the value is absent, and its storage stays until they are
  /// gone(). Throws Error, and nothing has changed, when they cannot be written there. Where that shows later, the
  /// value is held in its storage.
  void offload(plan::ValueId value, const c10::Storage& storage, OnTheWay on_the_way = {});
  /// The same, but they stay on the device, compressed. Throws Error where they do not fit, or there is no memory for
  /// them.
  void compress(plan::ValueId value, const c10::Storage& storage, const plan::Encoding& encoding);
  /// Contents that have been moved have left, and the storage that they were in may go, or be written. Returns bytes
  /// that this frees on the device: none where the program refers to them, or they had been gone.
  Bytes gone(plan::ValueId value);
  void all_gone();
  /// All of a device.
  Bytes all_gone_from(c10::Device device);
  /// What has been moved, in a new storage: whoever reads that waits (see arrived). Throws Error when it cannot be
  /// read.
  [[nodiscard]] c10::Storage fetch(plan::ValueId value);
  /// The value is about to be read in its device's current stream, which waits for it where it has been fetched. Throws
  /// Error when it could not be read.
  void arrived(plan::ValueId value) const { moved_.arrived(value); }
  /// Moved contents cannot be read: the value is held where they are still in its storage, or else is absent, and made
  /// again. False, where it can be neither.
  [[nodiscard]] bool do_without(plan::ValueId value);
  /// Copies a held value whose storage the program is about to write. Throws OutOfBudget if there is no memory for the
  /// copy; then nothing has changed.
  void copy_before_write(plan::ValueId value);
  /// Drops what can be made again or fetched (see Ledger::evictable).
  void evict(plan::ValueId value) { ledger_.evict(value); }
  /// Bytes of its device's memory that an absent value's compressed contents take, if they may go (see give_up).
  [[nodiscard]] Bytes compressed_to(plan::ValueId value) const {
    return ledger_.may_give_up(value) && value != fetching_ ? moved_.compressed_to(value) : 0;
  }
  /// How an absent value, or its image, is compressed, if it is.
  [[nodiscard]] plan::Encodings encodings(plan::ValueId value) const;
  /// Compressed contents go, as the value can be made again.
  void give_up(plan::ValueId value);

  /// Whether a resident value is in the program's own storage, and not in one that a replay, a copy or a fetch made.
  [[nodiscard]] bool in_programs_storage(plan::ValueId value) const {
    return at(value).storage && at(value).storage.unsafeGetStorageImpl() == address(value);
  }
  /// Whether the program has freed a part of a resident value's storage, or all of it, as by resize_(0).
  [[nodiscard]] bool shrunk(plan::ValueId value) const {
    return in_programs_storage(value) && static_cast<Bytes>(at(value).storage.nbytes()) < at(value).nbytes;
  }
  /// Gives `tensor`, which is about to be handed to a node of autograd, the counter of writes to the storage of a
  /// resident value that is not the program's.
  void count_writes_of(plan::ValueId value, const at::Tensor& tensor);
  /// Whether a node has written to such a storage since.
  [[nodiscard]] bool spoilt(plan::ValueId value) const {
    const auto found = writes_.find(value);
    return found != writes_.end() && found->second.raised();
  }
  /// Holds an absent leaf again that the program still has; false where that has gone.
  bool hold_again(plan::ValueId leaf);
  /// The program's storage of the value, which plain autograd would read, even if there is another copy of the
  /// contents. Undefined if it was freed, resized, or overwritten by a recorded operator.
  [[nodiscard]] c10::Storage programs_storage(plan::ValueId value) const;

  /// Results that are held as the program has them.
  [[nodiscard]] std::span<const plan::ValueId> held_results();
  /// Whether nobody but the tape refers to a resident value's storage.
  [[nodiscard]] bool only_ours(plan::ValueId value) const;
  /// Whether the program's own references to a value are gone: no tensor outside the tape uses its storage.
  [[nodiscard]] bool program_let_go(plan::ValueId value) const;

  /// What saved tensors stand for in place of values.
  [[nodiscard]] ImageStore& images() noexcept { return images_; }
  [[nodiscard]] const ImageStore& images() const noexcept { return images_; }
  /// Makes the image of a value that is in this storage, as ImageStore::add does.
  void make_image(plan::ValueId value, const c10::Storage& storage, const plan::Encoding& encoding);

  // --- need: see Ledger ----------------------------------------------------------------------------------------------

  void pack(plan::ValueId value, StandsFor what = StandsFor::Value);
  void consume(plan::ValueId value, StandsFor what = StandsFor::Value);
  /// `unpacked_in`: the backward pass that has unpacked the saved tensor, or kNoPass.
  void release(plan::ValueId value, int unpacked_in, StandsFor what = StandsFor::Value);
  /// Of what backward gets.
  [[nodiscard]] plan::Residency residency(plan::ValueId value, StandsFor what) const;
  /// A backward pass unpacks. Returns whether it is a new one.
  bool enter_pass(int pass);
  void end_pass();
  /// Lets go of moved contents that nothing needs. Once the recording is over: before, an operator that reads them may
  /// still come.
  void forget_unneeded();
  /// The recording is over: what nothing needs goes, leaves too unless they are to stay.
  void settle(plan::Leaves leaves);

  void pin(const plan::ReplaySchedule& replay) { ledger_.pin(replay); }
  void unpin(const plan::ReplaySchedule& replay, std::size_t finished) { ledger_.unpin(replay, finished); }
  [[nodiscard]] bool begin(const plan::RunAgain& step) { return ledger_.begin(step); }
  void end(const plan::RunAgain& step) { ledger_.end(step); }
  void finish(const plan::RunAgain& step) { ledger_.finish(step); }

  // --- accounts ----------------------------------------------------------------------------------------------------

  /// Of all leaves that are still held.
  [[nodiscard]] std::vector<c10::Storage> leaf_storages() const;
  /// Whether the value is a leaf whose storage is of another size now, as of a weight that has been freed after its
  /// use.
  [[nodiscard]] bool resized(plan::ValueId value) const;
  /// Whether a recorded operator made the storage, so that it was not there before the step.
  [[nodiscard]] bool made(c10::StorageImpl* storage) const;
  /// Bytes that have been moved out of the device's memory.
  [[nodiscard]] Bytes offloaded_bytes() const noexcept { return offloaded_bytes_; }
  /// Bytes that have been compressed, as many as they were.
  [[nodiscard]] Bytes compressed_bytes() const noexcept { return compressed_bytes_; }

 private:
  struct Value {
    c10::Storage storage;  // while resident
    // Pins the address, so that it is never taken for another storage's.
    c10::weak_intrusive_ptr<c10::StorageImpl> identity{c10::intrusive_ptr<c10::StorageImpl>()};
    Bytes nbytes = 0;
    c10::Device device{c10::kCPU};
    bool leaf = false;
    bool copied = false;  // the contents are in a copy, or were offloaded
    bool unfilled = false;
    bool all_written = false;
    bool was_there = false;
    bool of_result = false;  // a leaf: contents that something unseen left in a result
    std::optional<plan::Action> away;
    bool read = false;
    std::optional<c10::ScalarType> saved_as;
    plan::Must must = plan::Must::Nothing;
  };

  Value& at(plan::ValueId value) { return values_[plan::at(value)]; }
  [[nodiscard]] const Value& at(plan::ValueId value) const { return values_[plan::at(value)]; }
  void add(plan::ValueId value, const c10::Storage& storage);
  void mark_leaf(plan::ValueId value);
  void let_go(plan::ValueId value);
  void take_back(plan::ValueId value, const c10::Storage& storage);

  TapeMutex& mutex_;
  const TapeObservers& observers_;
  plan::Dataflow flow_;
  plan::Ledger ledger_;
  std::vector<Value> values_;
  ska::flat_hash_map<plan::ValueId, SeenVersion> writes_;         // to storages that are not the program's, by nodes
  std::vector<plan::ValueId> held_results_;                       // and some that no longer are
  ska::flat_hash_map<c10::StorageImpl*, plan::ValueId> current_;  // the version that a storage holds now
  MovedContents moved_;
  ImageStore images_;
  Bytes offloaded_bytes_ = 0, compressed_bytes_ = 0;
  int pass_ = kNoPass;
  bool holds_leaves_ = true;
  plan::ValueId fetching_ = plan::kNoValue;  // whose contents are being read while the mutex is lent
};

}  // namespace snug::record
