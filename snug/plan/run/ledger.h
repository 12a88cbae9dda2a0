#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "snug/plan/run/replay_schedule.h"
#include "snug/plan/run/scheduler.h"
#include "snug/plan/step/dataflow.h"
#include "snug/plan/step/ids.h"

namespace snug::plan {

/// Where a value is.
enum class Residency : std::uint8_t {
  Absent,
  Cached,  ///< made again or fetched, until its saved tensors have been unpacked
  Held,    ///< until nobody needs it
};

/// What brings an absent value back.
enum class Source : std::uint8_t {
  Recompute,  ///< the operator that made it; leaves have none
  Fetch,      ///< the caller, who has its contents elsewhere
};

/// Whether a saved tensor was unpacked in the backward pass that goes on.
enum class Unpacked : std::uint8_t { Not, Now };
/// What becomes of leaves that nothing needs when the recording is over.
enum class Leaves : std::uint8_t {
  Go,
  Stay  ///< to the end, so that what is held now can be evicted later
};
/// What may be evicted.
enum class Resort : std::uint8_t {
  First,
  Last  ///< also what a running replay will still read
};

/// What a ledger knows, as a plain value: tests go from one to the next in every order.
struct LedgerState {
  struct Entry {
    std::int32_t packs = 0;    ///< saved tensors that stand for the value
    std::int32_t pending = 0;  ///< of those, that wait to be unpacked
    std::int32_t readers = 0;  ///< operators with demand that read it, each as often as it does
    std::int32_t pins = 0;     ///< must stay
    std::int32_t wanted = 0;   ///< running replays that will read it
    Residency residency = Residency::Absent;
    Source source = Source::Recompute;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> values;
  std::vector<std::int32_t> demand;  ///< per operator: absent outputs that are needed
  bool settled = false;
  bool keep_leaves = false;
  friend bool operator==(const LedgerState&, const LedgerState&) = default;
};

/// Keeps the books of one recorded step: which values are resident, which saved tensors wait for them, and what must
/// stay so that every other value can be made again. It decides nothing about what to keep; it works out what follows.
/// The executor and the simulator share it, so that they agree by construction.
///
/// A value is needed while a saved tensor stands for it or an operator that will be replayed reads it.
///
/// Not synchronized. Several replays may be under way; their operators take turns, and while one runs, from begin() to
/// finish() and end(), values may be evicted and saved tensors released, and nothing else.
class Ledger {
 public:
  /// `drop` is called when a resident value is no longer needed, or is evicted; it must not call the ledger.
  /// It goes on from `state`, which is another ledger's over the same flow.
  Ledger(const Dataflow& flow, std::function<void(ValueId)> drop, LedgerState state = {});

  [[nodiscard]] const LedgerState& state() const noexcept { return state_; }

  /// The caller has the value and keeps it until `drop`.
  void hold(ValueId value);
  /// The value's contents were overwritten: it is absent from here on. `drop` is not called.
  void lose(ValueId value);

  /// The value is absent from here on, and the caller can fetch it whenever a replay asks for it. `drop` is not called.
  void offload(ValueId value);
  /// The caller could not move it, and has it as before.
  void take_back(ValueId value);
  /// The caller can fetch it no more. Nothing may need it.
  void forget(ValueId value);

  [[nodiscard]] Residency residency(ValueId value) const {
    return has(value) ? entry(value).residency : Residency::Absent;
  }
  [[nodiscard]] bool held(ValueId value) const { return residency(value) == Residency::Held; }
  [[nodiscard]] bool cached(ValueId value) const { return residency(value) == Residency::Cached; }
  [[nodiscard]] bool resident(ValueId value) const { return residency(value) != Residency::Absent; }
  [[nodiscard]] bool fetchable(ValueId value) const { return has(value) && entry(value).source == Source::Fetch; }
  /// Nothing has to run to have it.
  [[nodiscard]] bool at_hand(ValueId value) const { return resident(value) || fetchable(value); }
  /// It is absent, and a saved tensor will be unpacked in this backward pass.
  [[nodiscard]] bool waited_for(ValueId value) const {
    return has(value) && entry(value).pending > 0 && !resident(value);
  }
  /// This backward pass has still a use for it: a saved tensor will be unpacked, or an operator that would be replayed
  /// reads it.
  [[nodiscard]] bool has_use(ValueId value) const {
    return has(value) && (entry(value).pending > 0 || entry(value).readers > 0);
  }
  /// How many of the operator's results are needed and rely on its running again.
  [[nodiscard]] int demand(OpId op) const { return at(op) < state_.demand.size() ? state_.demand[at(op)] : 0; }
  /// A saved tensor stands for it, or an operator that would be replayed reads it.
  [[nodiscard]] bool needed(ValueId value) const {
    return has(value) && (entry(value).packs > 0 || entry(value).readers > 0);
  }
  /// Nothing needs it, and no running replay will read it.
  [[nodiscard]] bool useless(ValueId value) const {
    return !needed(value) && (!has(value) || entry(value).wanted == 0);
  }
  [[nodiscard]] int packs(ValueId value) const { return has(value) ? entry(value).packs : 0; }

  /// A saved tensor stands for the value.
  void pack(ValueId value);
  /// A saved tensor was unpacked for the first time in this backward pass.
  void consume(ValueId value);
  /// A saved tensor was destroyed.
  void release(ValueId value, Unpacked unpacked);
  /// A new backward pass: every saved tensor waits to be unpacked again.
  void begin_pass();
  /// Drops what replays left behind; saved tensors that are unpacked later are replayed again.
  void end_pass();

  /// The recording is over: drops every held value that nothing needs. From here on values are dropped as soon as
  /// they have no further use.
  void settle(Leaves leaves = Leaves::Go);
  [[nodiscard]] bool settled() const noexcept { return state_.settled; }

  /// What to run so that `value`, which is absent, is resident. Values that are still waited for and depend on what
  /// is computed on the way are made along with it. Throws std::logic_error when a leaf that it needs is gone.
  [[nodiscard]] ReplaySchedule schedule(ValueId value) const { return scheduler_.schedule(*this, value); }
  /// The executor has made or fetched this value in a step of a replay and keeps it until `drop`.
  void cache(ValueId value);
  /// The operator of a replay has run.
  void finish(const RunAgain& step);
  /// A replay begins: its sources are wanted, and are evicted only in need.
  void pin(const ReplaySchedule& replay);
  /// It is over. `finished`: the steps that were done, in order; fewer than all when it was cut short.
  void unpin(const ReplaySchedule& replay, std::size_t finished);
  /// An operator of it runs: its inputs, which are resident, must stay. False, and nothing is pinned, when one of them
  /// has been evicted: then the rest of the replay is to be scheduled anew.
  [[nodiscard]] bool begin(const RunAgain& step);
  /// It ran or failed.
  void end(const RunAgain& step);

  /// By operator: the seconds that making its outputs again would take now, along the longest chain of absent inputs,
  /// or infinity where a source is gone, or other processes would have to take part. What can be fetched costs nothing.
  /// One pass over the recording.
  [[nodiscard]] std::vector<double> recovery_seconds(const std::function<double(OpId)>& seconds) const;
  [[nodiscard]] bool evictable(ValueId value, Resort resort = Resort::First) const;
  /// An absent value's contents elsewhere may go, as its operator can bring it back (its recovery must be finite).
  [[nodiscard]] bool may_give_up(ValueId value) const {
    return fetchable(value) && !resident(value) && idle(entry(value)) && !flow_.is_leaf(value);
  }
  /// The caller can fetch it no more, though it may be needed: it is made again.
  void give_up(ValueId value);
  /// Drops a resident value that is still needed. It must be evictable, and fetchable or its operator's recovery
  /// finite.
  void evict(ValueId value);

 private:
  using Entry = LedgerState::Entry;
  bool has(ValueId value) const { return static_cast<std::size_t>(value) < state_.values.size(); }
  Entry& entry(ValueId value) {
    if (!has(value)) grow();
    return state_.values[static_cast<std::size_t>(value)];
  }
  void grow();
  const Entry& entry(ValueId value) const { return state_.values[static_cast<std::size_t>(value)]; }
  /// It is not there to stay, and its operator alone brings it back.
  bool relies_on_operator(ValueId value) const { return !held(value) && !fetchable(value); }
  static bool idle(const Entry& e) { return e.pins == 0 && e.wanted == 0; }
  /// Made together with other processes, and still read by what will be made again: it is there until then. What is
  /// made along with a replay is each process's affair, as it depends on evictions; when all make this again is not.
  bool stays_for_readers(ValueId value) const {
    const OpId producer = flow_.producer(value);
    return producer != kNoOp && flow_.runs_together(producer) && entry(value).readers > 0 && !fetchable(value);
  }
  bool stays(ValueId value) const { return state_.keep_leaves && flow_.is_leaf(value); }
  void want(OpId op);
  void unwant(OpId op);
  void retire_unneeded();
  void drop_resident(ValueId value);
  void drop_if_useless(ValueId value);
  void remove_pin(ValueId value);

  const Dataflow& flow_;
  std::function<void(ValueId)> drop_;
  LedgerState state_;
  std::vector<ValueId> unneeded_;  // to be retired; empty between calls
  mutable Scheduler scheduler_;    // for its scratch memory
};

}  // namespace snug::plan
