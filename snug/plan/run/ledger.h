#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "snug/plan/step/dataflow.h"
#include "snug/plan/step/ids.h"

namespace snug::plan {

/// One operator of a replay, and the values that have no further use once it has run. `copies` are the overwritten
/// inputs that must be copied first because they live on; an overwritten input that is not listed is taken over.
struct ReplayStep {
  OpId op = kNoOp;
  std::vector<ValueId> drops;
  std::vector<ValueId> copies;
  std::vector<ValueId> read_later;  ///< outputs that later steps of the replay read: not to be evicted until then
  std::vector<ValueId> read_last;   ///< values made in this replay that no later step reads
};

/// The operators that make a value again, in the order of the recording.
struct Replay {
  std::vector<ReplayStep> steps;
  std::vector<ValueId> sources;  ///< values that the steps read: resident, or among the loads
  std::vector<ValueId> loads;    ///< offloaded values to be fetched first; they are cached then
};

/// Keeps the books of one recorded step: which values are resident, which saved tensors wait for them, and what must
/// stay so that every other value can be made again. It decides nothing about what to keep; it works out what follows.
/// The executor and the simulator share it, so that they agree by construction.
///
/// A value is *held* (resident until nobody needs it), *cached* (made again by a replay, until its saved tensors have
/// been unpacked), or absent; an absent leaf may be *offloaded*, so that the caller can fetch it. It is needed while a
/// saved tensor stands for it or an operator that will be replayed reads it. Not synchronized.
class Ledger {
 public:
  /// `drop` is called when a resident value is no longer needed, or is evicted; it must not call the ledger.
  Ledger(const Dataflow& flow, std::function<void(ValueId)> drop);

  /// The caller has the value and keeps it until `drop`.
  void hold(ValueId value);
  /// The value's contents were overwritten: it is absent from here on. `drop` is not called.
  void lose(ValueId value);

  /// The value, a leaf, is absent, and the caller can fetch it whenever a replay asks for it.
  void offload(ValueId value);

  [[nodiscard]] bool held(ValueId value) const { return has(value) && entry(value).held; }
  [[nodiscard]] bool cached(ValueId value) const { return has(value) && entry(value).cached; }
  [[nodiscard]] bool resident(ValueId value) const { return held(value) || cached(value); }
  [[nodiscard]] bool offloaded(ValueId value) const { return has(value) && entry(value).offloaded; }
  /// A saved tensor stands for it, or an operator that would be replayed reads it.
  [[nodiscard]] bool needed(ValueId value) const {
    return has(value) && (entry(value).packs > 0 || entry(value).readers > 0);
  }
  [[nodiscard]] int packs(ValueId value) const { return has(value) ? entry(value).packs : 0; }

  /// A saved tensor stands for the value.
  void pack(ValueId value);
  /// A saved tensor was unpacked for the first time in this backward pass.
  void consume(ValueId value);
  /// A saved tensor was destroyed; `consumed` tells whether it was unpacked in this backward pass.
  void release(ValueId value, bool consumed);
  /// A new backward pass: every saved tensor waits to be unpacked again.
  void begin_pass();
  /// Drops what replays left behind; saved tensors that are unpacked later are replayed again.
  void end_pass();

  /// The recording is over: drops every held value that nothing needs. From here on values are dropped as soon as
  /// they have no further use. `keep_leaves`: leaves stay to the end, so that what is held now can be evicted later.
  void settle(bool keep_leaves = false);
  [[nodiscard]] bool settled() const noexcept { return settled_; }

  /// What to run so that `value`, which is absent, is resident. Values that are still waited for and depend on what
  /// is computed on the way are made along with it. Throws std::logic_error when a leaf that it needs is gone.
  [[nodiscard]] Replay schedule(ValueId value) const;
  /// The executor has made this value in a step of `replay` and keeps it until `drop`.
  void cache(ValueId value);
  /// A step of a replay is done.
  void finish(const ReplayStep& step);
  /// A replay begins: its sources are wanted, and are evicted only in need.
  void pin(const Replay& replay);
  void unpin(const Replay& replay);
  /// A step of it runs: its resident inputs must stay. False, and nothing is pinned, when one of them has been evicted:
  /// then the rest of the replay is to be scheduled anew.
  [[nodiscard]] bool begin(const ReplayStep& step);
  /// The step ran or failed.
  void end(const ReplayStep& step);

  /// By operator: the seconds that making its outputs again would take now, along the longest chain of absent inputs,
  /// or infinity where a source is gone. One pass over the recording.
  [[nodiscard]] std::vector<double> recovery_seconds(const std::function<double(OpId)>& seconds) const;
  /// `in_need`: also what a running replay will still read.
  [[nodiscard]] bool evictable(ValueId value, bool in_need = false) const;
  /// Drops a resident value that is still needed. It must be evictable, and its operator's recovery finite.
  void evict(ValueId value);

 private:
  struct Entry {
    std::int32_t packs = 0;
    std::int32_t pending = 0;
    std::int32_t readers = 0;  // inputs of demanded operators
    std::int32_t pins = 0;     // must stay
    std::int32_t wanted = 0;   // running replays that will read it
    bool held = false;
    bool cached = false;
    bool offloaded = false;
  };
  /// Marks on operators or values that are all zero again at each begin().
  class Marks {
   public:
    void begin(std::size_t size) {
      if (marks_.size() < size) marks_.resize(size);
      if (++round_ >= kRounds) {
        std::ranges::fill(marks_, 0U);
        round_ = 1;
      }
    }
    [[nodiscard]] std::uint8_t get(std::size_t i) const {
      return marks_[i] >> 8 == round_ ? static_cast<std::uint8_t>(marks_[i]) : std::uint8_t{0};
    }
    void set(std::size_t i, std::uint8_t mark) { marks_[i] = round_ << 8 | mark; }
    void add(std::size_t i, std::uint8_t mark) { set(i, get(i) | mark); }

   private:
    static constexpr std::uint32_t kRounds = 1U << 24;
    std::vector<std::uint32_t> marks_;  // the round in which it was set, and the mark
    std::uint32_t round_ = 0;
  };
  bool has(ValueId value) const { return static_cast<std::size_t>(value) < entries_.size(); }
  Entry& entry(ValueId value) {
    if (!has(value)) grow(value);
    return entries_[static_cast<std::size_t>(value)];
  }
  void grow(ValueId value);
  const Entry& entry(ValueId value) const { return entries_[static_cast<std::size_t>(value)]; }
  int demand(OpId op) const;
  bool at_hand(ValueId value) const { return resident(value) || offloaded(value); }
  static bool idle(const Entry& e) { return e.pins == 0 && e.wanted == 0; }
  bool stays(ValueId value) const { return keep_leaves_ && flow_.is_leaf(value); }
  void want(OpId op);
  void retire(ValueId value);
  void drop_resident(ValueId value);

  const Dataflow& flow_;
  std::function<void(ValueId)> drop_;
  std::vector<Entry> entries_;
  std::vector<std::int32_t> demand_;  // per operator: absent outputs that are needed
  bool settled_ = false;
  bool keep_leaves_ = false;
  mutable Marks op_marks_, value_marks_;  // of the schedule being made
};

}  // namespace snug::plan
