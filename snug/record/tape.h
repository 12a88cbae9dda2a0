#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/plan/run/ledger.h"
#include "snug/plan/run/prefetch.h"
#include "snug/plan/step/dataflow.h"
#include "snug/record/call_log.h"
#include "snug/record/pending_call.h"
#include "snug/record/plan_follower.h"
#include "snug/record/region_stack.h"
#include "snug/record/saved_counts.h"
#include "snug/record/saved_tensor.h"
#include "snug/record/stream_order.h"
#include "snug/record/tape_mutex.h"
#include "snug/record/tape_observer.h"
#include "snug/record/unsharded_weights.h"
#include "snug/record/value_lookup.h"
#include "snug/record/value_store.h"
#include "snug/record/verified_contents.h"
#include "snug/record/version_tracker.h"

namespace snug::record {

/// The operators that ran on one thread, and the values they read and wrote: enough to run any of them again with
/// bitwise the same result. Values are contents of storages by version; views are geometry over them. The tape holds
/// leaves (values that no recorded operator made) and whatever its policy and its regions keep; everything else can
/// be made again from them.
///
/// A tape is its parts and the mutex that guards them: calls (CallLog), values and their contents (ValueStore), who has
/// written them (VersionTracker, ValueLookup), what is to be held (PlanFollower, RegionStack).
///
/// record() is called by the recording thread only, and so are those that change what it does: regions, finish(),
/// detach(), add_observer(). Saved tensors may be unpacked and destroyed on other threads, and any thread may evict:
/// every function takes the tape's mutex, which is lent to evictions while a kernel runs, and waits for it without what
/// code of a front end needs under it (PatientLock); what only asks, and what a replay calls, expects it to be held.
class Tape {
 public:
  explicit Tape(Policy policy, std::shared_ptr<TapeObserver> observer = nullptr);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// How many tapes there are in the process, recording or waiting for backward passes.
  static int alive() noexcept;

  // --- recording ---------------------------------------------------------------------------------------------------

  /// Runs the call of an operator of these traits on `stack` under `keys` and records it.
  void record(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet keys,
              torch::jit::Stack& stack);

  /// Values born until close_region() are dropped (recompute) or kept, or as the policy says. Regions nest, the
  /// innermost wins. A value that leaves a region which drops it is kept, unless an enclosing region can make it again.
  /// In a planned step (see planned) only what a policy says must be counts.
  void open_region(RegionTerms terms);
  void close_region();
  /// Whether a plan decides, or will be made from this recording.
  [[nodiscard]] bool planned() const noexcept { return observers_.measure() || follower_.planned(); }

  /// A saved tensor begins; its address must stay until forget(). Returns false when the tensor cannot be on a tape
  /// (see is_plain): keep the tensor itself.
  bool save(const at::Tensor& tensor, SavedTensor& saved);
  /// The saved tensor is destroyed. `unpacked_in`: the backward pass that has unpacked it, or kNoPass.
  void forget(SavedTensor& saved, int unpacked_in);
  /// Binds all saved tensors that still wait for their operator.
  void bind_all();
  /// Lets go of results that something unseen has written over, so that they are made again where they are read.
  void notice_writes() { lookup_.notice_writes(); }

  /// The tensor that autograd saved, where the program still has it and it shows the value's contents; else undefined.
  [[nodiscard]] at::Tensor original_of(const SavedTensor& saved) const;
  /// The tensor that a node gets for a saved one, over `storage`, which has its contents: the original where it needs
  /// no gradient, or one whose writes are counted, so that a node that writes to what it saved spoils no replay (see
  /// drop_if_spoilt).
  [[nodiscard]] at::Tensor hand_out(SavedTensor& saved, const c10::Storage& storage);
  /// Drops a resident value that a node has written to since it was handed out, or whose storage the program has freed,
  /// so that it is recomputed. Returns whether it did. Throws Error where the value cannot be recomputed.
  bool drop_if_spoilt(plan::ValueId value);

  /// Another tape, which hides this one, is about to record a write: what was known of the storage no longer holds.
  void written_elsewhere(c10::StorageImpl* storage);
  /// Whether a write raises the version of what is written. Unknown: a kernel had the tensor, and may only have read
  /// it.
  enum class Version : std::uint8_t { Rises, MayStay, Unknown };
  /// Marks the saved tensors that share bytes with `tensor`, which an operator has written, on this tape or on one that
  /// hides it (see SavedTensor::written). With Unknown only leaves: marked results stay in memory until backward.
  void note_written(const at::Tensor& tensor, Version version);
  /// For a finished tape: an operator that no tape or another one records is about to write `tensor` without raising
  /// its version. Copies what replays need of it and marks saved tensors that share its bytes (note_written). Does
  /// nothing while the tape records. Any thread.
  void about_to_be_written(const at::Tensor& tensor);
  /// The tape that this one hides while it records, or nullptr.
  void set_outer(Tape* outer) noexcept { outer_ = outer; }

  /// The recording is over: what nothing needs is dropped.
  void finish();
  [[nodiscard]] bool finished() const noexcept { return ledger().settled(); }

  /// From now on the contents of what is dropped are remembered, and compared when they are made again: a replay that
  /// makes other bits throws Error, naming the operator, its module and the place.
  void verify_replays(VerifyReplay how) noexcept { verified_.verify(how); }
  /// The same for what has not been compared yet; see VerifiedContents::verify_once.
  void verify_replays_once(std::shared_ptr<ComparedReplays> compared, std::uint64_t place) noexcept {
    verified_.verify_once(std::move(compared), place);
  }
  [[nodiscard]] const VerifiedContents& verified() const noexcept { return verified_; }
  /// The observer is told of what happens from now on.
  void add_observer(std::shared_ptr<TapeObserver> observer);
  /// The observer is told nothing from now on. Does nothing for one that was not added.
  void remove_observer(const TapeObserver& observer) noexcept;
  /// From now on notes how long operators take: the host, or that device where it has a clock of its own. The first
  /// that is asked for counts.
  void time_operators(const memory::DeviceMemory& memory) noexcept {
    if (timed_by_ == nullptr) timed_by_ = &memory;
  }
  /// Whoever drives the step is done with it, though saved tensors may keep the tape alive: what DecideLater puts off
  /// is asked no more, and observers that measure are told nothing.
  void detach() noexcept;

  // --- replay ------------------------------------------------------------------------------------------------------

  [[nodiscard]] TapeMutex& mutex() const noexcept { return mutex_; }
  [[nodiscard]] const TapeObservers& observers() const noexcept { return observers_; }
  [[nodiscard]] const CallLog& calls() const noexcept { return calls_; }
  [[nodiscard]] ValueStore& values() noexcept { return values_; }
  [[nodiscard]] const ValueStore& values() const noexcept { return values_; }
  [[nodiscard]] const plan::Dataflow& flow() const noexcept { return values_.flow(); }
  [[nodiscard]] const plan::Ledger& ledger() const noexcept { return values_.ledger(); }
  [[nodiscard]] const ValueLookup& lookup() const noexcept { return lookup_; }
  [[nodiscard]] StreamOrder& streams() noexcept { return streams_; }

  /// An operator has run again.
  void replayed(plan::OpId op);
  /// An operator that ran again has made the value, which stays until the ledger drops it. Throws Error when its bits
  /// are others (see verify_replays).
  void put(plan::ValueId value, c10::Storage storage);
  /// Fetches an offloaded value, as if a replay had made it. False: it cannot be read, and is made again where it is
  /// needed. Throws Error when that cannot be, either.
  [[nodiscard]] bool load(plan::ValueId value);
  /// A backward pass begins to unpack: what the plan fetches ahead of it, from the beginning.
  void begin_fetching_ahead();
  /// Whether plans have to keep the value, as has turned out since it was made (see UnshardedWeights).
  [[nodiscard]] bool turned_out_kept(plan::ValueId value) const { return unsharded_.is_kept(value); }
  /// A node asks for the value. Where weights that it takes to make it again are not there now, plans that are made of
  /// this recording have to keep it.
  void asked_by_backward(plan::ValueId value) { (void)leaves_weights(value); }
  /// A tensor is unpacked: calls load(value) for what is fetched ahead now, until that returns false.
  template <class Load>
  void fetch_ahead(const Load& load) {
    prefetch_.unpacked(
        ledger(), [this](plan::ValueId value) { return planned_bytes(value); }, load);
  }
  /// A value that is there is about to be read in its device's current stream. False, as of load(): it has been
  /// fetched, could not be read, and is absent.
  [[nodiscard]] bool asked_for(plan::ValueId value);
  /// Drops a resident value that can be made again, or an absent one's compressed contents. Only through the pressure
  /// handler. Returns the bytes that it takes no more.
  Bytes evict(plan::ValueId value);

  /// Keeps a reference to an unpacked tensor over the program's storage until the end of the backward pass. Otherwise
  /// AccumulateGrad would take it as .grad if a node returned it, as nobody else refers to it.
  void hold_for_pass(int pass, at::Tensor tensor) { saved_.handed_out.emplace_back(pass, std::move(tensor)); }
  /// The end of a backward pass that ValueStore::enter_pass has begun.
  void leave_pass(int pass);
  /// The operator that forward or backward is at.
  /// Eviction measures distances from there.
  [[nodiscard]] plan::OpId position() const noexcept { return finished() ? position_ : flow().ops(); }
  void move_to(plan::OpId op) noexcept { position_ = op; }
  /// Seconds that an operator took when the plan's step was recorded, else now; 1 when nobody measured.
  [[nodiscard]] double seconds(plan::OpId op) const;

  // --- accounts ----------------------------------------------------------------------------------------------------

  /// Where the step first differed from all known ones.
  [[nodiscard]] const std::optional<Divergence>& divergence() const noexcept { return follower_.divergence(); }
  /// The known step that this one is, so far; null when it is none of them.
  [[nodiscard]] const KnownStep* known_step() const noexcept { return follower_.known_step(); }
  /// What is kept because something outside of ATen filled it, in the order of the recording.
  [[nodiscard]] const std::vector<Opaque>& opaque() const noexcept { return lookup_.opaque(); }
  [[nodiscard]] SavedCounts saved_counts() const;
  /// A leaf whose storage has been resized since it was read, and that nothing was seen to gather into it.
  [[nodiscard]] std::optional<plan::ValueId> resized_leaf() const;
  [[nodiscard]] std::int64_t replayed_ops() const noexcept { return replayed_ops_; }

 private:
  /// What an operator does with a tensor argument.
  enum class Use : std::uint8_t { Read, Write, Overwrite };

  void decide();
  void run_once(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet keys,
                torch::jit::Stack& stack);

  [[nodiscard]] bool runs_once(const OperatorTraits& traits, const c10::IValue* arguments) const;
  [[nodiscard]] bool updates_unread_leaves(const OperatorTraits& traits, const c10::IValue* arguments) const;
  bool gathers(const at::Tensor& written);
  void keep_what_is_made_of(plan::ValueId value);
  void note_filling(const OperatorTraits& traits, const torch::jit::Stack& results);

  void prepare(PendingCall& pending, const c10::IValue* arguments);
  void run(PendingCall& pending, const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  void commit(PendingCall& pending, const torch::jit::Stack& stack);
  void roll_back(PendingCall& pending);
  void leave_out(PendingCall& pending);
  void capture_arguments(PendingCall& pending, const c10::IValue* arguments);
  void capture_tensor(PendingCall& pending, const at::Tensor& tensor, Use use, OutputSlot slot);
  void capture_random_state(PendingCall& pending, const c10::IValue* arguments);
  void excuse(const OperatorTraits& traits, const c10::IValue* arguments);
  plan::ValueId read(const at::Tensor& tensor, Use use);
  bool leaves_weights(plan::ValueId value);
  void must_be_kept(plan::ValueId value);

  [[nodiscard]] plan::GroupId group_of(std::span<const plan::ValueId> inputs) const;
  void ask_region(PendingCall& pending);
  void add_written(PendingCall& pending, const WrittenTensor& written);
  void add_result(PendingCall& pending, const at::Tensor& tensor, OutputSlot slot);
  plan::ValueId add_output(const PendingCall& pending, const at::Tensor& tensor, plan::ValueId overwrites,
                           OutputSlot slot);
  [[nodiscard]] plan::Must must_of(const PendingCall& pending, plan::ValueId value) const;
  void place(const PendingCall& pending, plan::ValueId value, const c10::Storage& storage);
  void tell_results(plan::OpId op);

  void bind(SavedTensor& saved);
  void bind_each(const std::vector<SavedTensor*>& saved);
  StandsFor what_is_left_for(const SavedTensor& saved);
  bool can_be_made_again(plan::ValueId value);
  void let_go_originals(plan::ValueId leaf, std::vector<at::Tensor>& let_go);
  void bind_before(const OperatorTraits& traits, const c10::IValue* arguments);
  void keep(plan::ValueId value, const c10::Storage& storage);
  void put_away(plan::ValueId value, const c10::Storage& storage, plan::Action how);
  template <class Read>
  bool readable(plan::ValueId value, const Read& read);
  void remember_contents(plan::ValueId value);
  [[nodiscard]] Bytes planned_bytes(plan::ValueId value) const;
  [[nodiscard]] const plan::Encoding* planned_encoding(plan::ValueId value, plan::Codec codec) const;
  [[nodiscard]] bool escapes(plan::ValueId value) const;
  [[nodiscard]] bool keeps_when_saved(plan::ValueId value) const;

  mutable TapeMutex mutex_;
  TapeObservers observers_;
  CallLog calls_;
  StreamOrder streams_;
  ValueStore values_{mutex_, observers_, streams_};
  VersionTracker versions_;
  ValueLookup lookup_{values_, versions_, calls_, observers_};
  VerifiedContents verified_{calls_, values_};
  UnshardedWeights unsharded_;
  PlanFollower follower_;
  RegionStack regions_;
  plan::Prefetch prefetch_;

  PendingLists lists_;                 // of the call that is being recorded
  std::exception_ptr failure_;         // of a policy, or of moving; thrown when the call has been recorded whole
  std::vector<SavedTensor*> waiting_;  // for their operator
  struct {
    std::vector<SavedTensor*> bound;                     // that stand for a value
    ska::flat_hash_map<c10::StorageImpl*, int> count;    // of those by storage
    std::vector<std::pair<int, at::Tensor>> handed_out;  // in which pass: see hold_for_pass
    std::int64_t unplain = 0;                            // that cannot be on a tape
  } saved_;
  Tape* outer_ = nullptr;    // that records when this one does not
  plan::OpId position_ = 0;  // of backward
  const memory::DeviceMemory* timed_by_ = nullptr;
  std::int64_t replayed_ops_ = 0;
};

}  // namespace snug::record
