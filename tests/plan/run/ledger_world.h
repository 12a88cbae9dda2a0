#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "snug/plan/run/ledger.h"

namespace snug::plan::world {

inline constexpr std::size_t kMostValues = 4;

/// A set of values.
using Set = std::uint32_t;
inline bool in(Set set, ValueId v) { return (set >> v & 1U) != 0; }
inline Set with(Set set, ValueId v) { return set | 1U << v; }
inline Set without(Set set, ValueId v) { return set & ~(1U << v); }

/// A thread that unpacks a saved tensor whose value is absent.
struct Thread {
  enum class At : std::uint8_t { Idle, BetweenSteps, InOperator };
  At at = At::Idle;
  ValueId target = kNoValue;
  std::size_t next = 0;  // step of the replay
  Set made = 0;          // by operators of the replay that have run, and absent when it was scheduled
  Set absent = 0;        // when it was scheduled
  ReplaySchedule replay;
};

/// Everything there is: the ledger's books, what the caller really has, saved tensors and threads.
struct State {
  LedgerState books;
  Set store = 0;      // contents in memory
  Set elsewhere = 0;  // contents that can be fetched
  Set overwritten = 0;
  OpId recorded = 0;
  int pass = 0;
  std::array<int, kMostValues> waiting{}, consumed{};  // saved tensors
  std::array<Thread, 2> threads;
};

struct Transition {
  // clang-format off
  enum class Kind : std::uint8_t { Record, Hold, Offload, Pack, Settle, Unpack, Step, Finish, Fail, Leave, Evict,
                                   Release, ReleaseConsumed, Forget, BeginPass, EndPass };
  // clang-format on
  Kind kind;
  std::int32_t which = 0;   // operator, value; keep_leaves of Settle
  std::int32_t thread = 0;  // of Unpack to Leave

  [[nodiscard]] std::string text() const {
    static constexpr std::array kNames{"record",  "hold",   "offload",    "pack",    "settle", "unpack",
                                       "step",    "finish", "fail",       "leave",   "evict",  "release waiting",
                                       "release", "forget", "begin pass", "end pass"};
    return std::string(kNames.at(static_cast<std::size_t>(kind))) + " " + std::to_string(which) + " thread " +
           std::to_string(thread);
  }
};

/// How far the exploration goes, beside the flow.
struct Limits {
  int saved = 1;   // tensors for each value
  int passes = 1;  // over the graph
  bool unpacks_while_recording = false;
  bool offloads = true;
};

/// The transitions of a ledger over one flow as a pure function from state to state, and what must hold in each state.
class World {
 public:
  World(Dataflow flow, Limits limits) : flow_(std::move(flow)), limits_(limits) {}

  [[nodiscard]] const Dataflow& flow() const { return flow_; }

  [[nodiscard]] State first() const {
    State s;
    for (ValueId v = 0; v < flow_.values(); ++v) {
      if (flow_.is_leaf(v)) s.store = with(s.store, v);
    }
    Ledger ledger(flow_, [](ValueId) {});
    for (ValueId v = 0; v < flow_.values(); ++v) {
      if (flow_.is_leaf(v)) {
        ledger.hold(v);
      } else {
        ledger.lose(v);
      }
    }
    s.books = ledger.state();
    return s;
  }

  /// All that callers may do next.
  [[nodiscard]] std::vector<Transition> legal(const State& s) const;

  /// What comes of it. Throws Broken when the ledger breaks a promise.
  [[nodiscard]] State after(const State& before, Transition action) const;

  /// Throws Broken when something does not hold.
  void check(const State& s) const;

  /// Threads that go on alone get their values, and leave behind only what is waited for.
  void check_progress(const State& s) const;

  [[nodiscard]] static bool idle(const State& s) {
    return std::ranges::all_of(s.threads, [](const Thread& t) { return t.at == Thread::At::Idle; });
  }
  /// All saved tensors are gone and nobody replays: nothing but leaves that stay may be left.
  [[nodiscard]] bool over(const State& s) const {
    return s.books.settled && idle(s) && s.elsewhere == 0 && saved(s.waiting) + saved(s.consumed) == 0;
  }

  /// States with the same key are the same.
  [[nodiscard]] static std::string key(const State& s);

 private:
  static int saved(const std::array<int, kMostValues>& counts) {
    int sum = 0;
    for (int count : counts) sum += count;
    return sum;
  }
  [[nodiscard]] bool reads(OpId op, ValueId v) const {
    return std::ranges::find(flow_.inputs(op), v) != flow_.inputs(op).end();
  }
  [[nodiscard]] bool segmented() const { return flow_.segments() > 1; }
  [[nodiscard]] bool born(const State& s, ValueId v) const {
    return flow_.is_leaf(v) || flow_.producer(v) < s.recorded;
  }
  /// Saved tensors of the value that no thread is unpacking.
  [[nodiscard]] static int free_to_unpack(const State& s, ValueId v) {
    const auto unpacking =
        std::ranges::count_if(s.threads, [v](const Thread& t) { return t.at != Thread::At::Idle && t.target == v; });
    return s.waiting.at(at(v)) - static_cast<int>(unpacking);
  }

  void add_recording(const State& s, const Ledger& ledger, std::vector<Transition>& found) const;
  void add_of_thread(const State& s, std::int32_t thread, std::vector<Transition>& found) const;
  void add_of_value(const State& s, const Ledger& ledger, ValueId v, std::vector<Transition>& found) const;

  void record(State& s, Ledger& ledger, OpId op) const;
  void unpack(State& s, Ledger& ledger, Thread& thread, ValueId v) const;
  void schedule(State& s, Ledger& ledger, Thread& thread) const;
  void step(State& s, Ledger& ledger, Thread& thread) const;
  void finish(State& s, Ledger& ledger, Thread& thread) const;
  void leave(State& s, Ledger& ledger, Thread& thread) const;

  /// A state's books against what follows from its saved tensors, by definition.
  [[nodiscard]] Set needed(const State& s, const Ledger& ledger) const;
  void check_recoverable(const State& s, const Ledger& ledger, Set needed) const;
  void check_pins(const State& s) const;
  /// What comes of it when this thread alone goes on, until it is idle or has to wait.
  [[nodiscard]] State alone(State s, std::int32_t thread) const;
  void check_uses(const State& s, const Ledger& ledger, Set needed) const;

  Dataflow flow_;
  Limits limits_;
};

struct Broken : std::logic_error {
  using std::logic_error::logic_error;
};

inline void must(bool holds, const char* what, std::int32_t which) {
  if (!holds) throw Broken(std::string(what) + ": " + std::to_string(which));
}

}  // namespace snug::plan::world
