// The ledger's promises on random steps: whatever is held, evicted and unpacked in whatever order, every replay has its
// inputs, every unpacked value has the contents that it had, and nothing is left at the end.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "snug/plan/run/ledger.h"
#include "snug/plan/step/segments.h"
#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

using synthetic::Dice;

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return (a ^ (b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2))) * 0x100000001b3ULL;
}

/// Beside packing, unpacking and releasing.
struct Happens {
  bool evictions = false;
  bool offloads = false;
};

class Machine {
 public:
  Machine(std::uint64_t seed, Happens happens)
      : dice_(seed),
        evicts_(happens.evictions),
        offloads_(happens.offloads),
        graph_(synthetic::random_graph(seed, 5 + dice_.roll(60))) {
    std::vector<SegmentRange> ranges;
    if (dice_.chance(60)) ranges = synthetic::random_segments(dice_, graph_.flow.ops());
    flow_ = with_segments(graph_.flow, ranges);
    truth_.resize(static_cast<std::size_t>(flow_.values()));
  }

  void record() {
    const int held = dice_.roll(100);
    for (ValueId v = 0; v < flow_.values(); ++v) {
      if (!flow_.is_leaf(v)) continue;
      truth(v) = mix(17, static_cast<std::uint64_t>(v));
      hold(v);
    }
    for (const Event& e : graph_.events) {
      if (e.kind == Event::Kind::Save) {
        ledger_.pack(e.id);
        waiting_.push_back(e.id);
      }
      if (e.kind != Event::Kind::Run) continue;
      for (std::size_t i = 0; i < flow_.outputs(e.id).size(); ++i) {
        const Output& out = flow_.outputs(e.id)[i];
        truth(out.value) = result(e.id, i, truth_);
        if (out.overwrites != kNoValue) {
          ledger_.lose(out.overwrites);
          store_.erase(out.overwrites);
        }
        if (dice_.chance(held)) hold(out.value);
        if (offloads_ && dice_.chance(15)) offload(out.value);
      }
      if (evicts_ && dice_.chance(20)) evict_one();
    }
    ledger_.settle();
    forget_what_is_useless();
  }

  /// Unpacks every saved tensor in random order; releases it some time later, if at all in this pass.
  void backward(bool release) {
    ledger_.begin_pass();
    std::vector<ValueId> order = waiting_;
    dice_.shuffle(order);
    std::vector<ValueId> unpacked;
    for (ValueId v : order) {
      if (!ledger_.resident(v)) replay(v);
      ASSERT_TRUE(ledger_.resident(v)) << "value " << v;
      ASSERT_EQ(store_.at(v), truth(v)) << "value " << v << " has other contents";
      ledger_.consume(v);
      unpacked.push_back(v);
      if (evicts_ && dice_.chance(30)) evict_one();
      while (release && !unpacked.empty() && dice_.chance(50)) release_one(unpacked);
      check_store();
    }
    while (release && !unpacked.empty()) release_one(unpacked);
    ledger_.end_pass();
    forget_what_is_useless();
    check_store();
  }

  void expect_nothing_left() {
    EXPECT_TRUE(store_.empty()) << "value " << store_.begin()->first << " is left";
    for (ValueId v = 0; v < flow_.values(); ++v) {
      EXPECT_FALSE(ledger_.resident(v)) << "value " << v;
      EXPECT_FALSE(ledger_.needed(v)) << "value " << v;
    }
  }

  int replayed = 0, taken_over = 0, copied = 0, evicted = 0, fetched = 0, given_up = 0;

 private:
  using Contents = std::vector<std::uint64_t>;
  std::uint64_t& truth(ValueId v) { return truth_[static_cast<std::size_t>(v)]; }

  template <class From>
  std::uint64_t result(OpId op, std::size_t output, const From& contents) const {
    std::uint64_t hash = mix(static_cast<std::uint64_t>(op) + 1, output);
    for (ValueId v : flow_.inputs(op)) {
      if constexpr (std::is_same_v<From, Contents>) {
        hash = mix(hash, contents[static_cast<std::size_t>(v)]);
      } else {
        hash = mix(hash, contents.at(v));  // throws when it is absent
      }
    }
    return hash;
  }

  void hold(ValueId v) {
    ledger_.hold(v);
    store_[v] = truth(v);
  }

  void offload(ValueId v) {
    store_.erase(v);
    elsewhere_[v] = truth(v);
    ledger_.offload(v);
  }

  void forget_what_is_useless() {
    std::erase_if(elsewhere_, [&](const auto& entry) {
      if (!ledger_.useless(entry.first)) return false;
      ledger_.forget(entry.first);
      return true;
    });
  }

  void replay(ValueId target) {
    const ReplaySchedule replay = ledger_.schedule(target);
    ASSERT_FALSE(replay.steps.empty());
    const std::set<ValueId> resident_before = residents();
    ledger_.pin(replay);
    OpId previous = kNoOp;
    for (std::size_t i = 0; i < replay.steps.size(); ++i) {
      if (const auto* fetch = std::get_if<Fetch>(&replay.steps[i])) {
        const auto next =
            std::find_if(replay.steps.begin() + static_cast<std::ptrdiff_t>(i), replay.steps.end(),
                         [](const ReplaySchedule::Step& s) { return std::holds_alternative<RunAgain>(s); });
        ASSERT_TRUE(next == replay.steps.end() || reads(std::get<RunAgain>(*next).op, fetch->value))
            << "fetched too soon";
        store_[fetch->value] = elsewhere_.at(fetch->value);
        ledger_.cache(fetch->value);
        ++fetched;
        continue;
      }
      const RunAgain& step = std::get<RunAgain>(replay.steps[i]);
      ASSERT_GT(step.op, previous) << "out of the order of the recording";
      previous = step.op;
      run(step);
      // Memory runs out in the middle of it.
      if (evicts_ && dice_.chance(15)) evict_one();
    }
    ledger_.unpin(replay, replay.steps.size());
    // Work that nobody asked for: a step none of whose results was read later or is there now.
    for (std::size_t i = 0; i < replay.steps.size(); ++i) expect_useful(replay, i, resident_before);
  }

  void run(const RunAgain& step) {
    ++replayed;
    for (ValueId v : flow_.inputs(step.op))
      ASSERT_TRUE(store_.contains(v)) << "operator " << step.op << " lacks value " << v;
    std::vector<std::uint64_t> results;
    for (std::size_t i = 0; i < flow_.outputs(step.op).size(); ++i) results.push_back(result(step.op, i, store_));
    const auto inputs = flow_.inputs(step.op);
    for (const Output& out : flow_.outputs(step.op)) {
      if (out.overwrites == kNoValue || std::ranges::find(inputs, out.overwrites) == inputs.end()) continue;
      if (std::ranges::find(step.copies, out.overwrites) != step.copies.end()) {
        ++copied;
        continue;
      }
      // Its contents are gone now: nobody may ask for them again without a replay.
      ASSERT_NE(std::ranges::find(step.drops, out.overwrites), step.drops.end());
      ASSERT_FALSE(ledger_.held(out.overwrites));
      ledger_.lose(out.overwrites);
      store_.erase(out.overwrites);
      ++taken_over;
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      const ValueId v = flow_.outputs(step.op)[i].value;
      ASSERT_EQ(results[i], truth(v));
      if (ledger_.resident(v)) continue;
      store_[v] = results[i];
      ledger_.cache(v);
    }
    ledger_.finish(step);
  }

  void expect_useful(const ReplaySchedule& replay, std::size_t i, const std::set<ValueId>& resident_before) {
    bool useful = false;
    const auto* step = std::get_if<RunAgain>(&replay.steps[i]);
    if (step == nullptr) return;
    for (const Output& out : flow_.outputs(step->op)) {
      useful = useful || (!resident_before.contains(out.value) && ledger_.resident(out.value));
      for (std::size_t k = i + 1; k < replay.steps.size(); ++k) {
        const auto* later = std::get_if<RunAgain>(&replay.steps[k]);
        useful = useful || (later != nullptr && !resident_before.contains(out.value) && reads(later->op, out.value));
      }
    }
    // What was made along the way may have been evicted since.
    EXPECT_TRUE(useful || evicts_) << "operator " << step->op << " ran for nothing";
  }

  bool reads(OpId op, ValueId v) const {
    const auto inputs = flow_.inputs(op);
    return std::ranges::find(inputs, v) != inputs.end();
  }

  void release_one(std::vector<ValueId>& unpacked) {
    const std::size_t i = static_cast<std::size_t>(dice_.roll(static_cast<int>(unpacked.size())));
    const ValueId v = unpacked[i];
    unpacked.erase(unpacked.begin() + static_cast<std::ptrdiff_t>(i));
    waiting_.erase(std::ranges::find(waiting_, v));
    const std::set<ValueId> before = residents();
    std::set<ValueId> held_before;
    for (ValueId r : before) {
      if (ledger_.held(r)) held_before.insert(r);
    }
    ledger_.release(v, Unpacked::Now);
    for (ValueId h : held_before) EXPECT_TRUE(ledger_.held(h) || !ledger_.needed(h)) << "value " << h << " was needed";
  }

  void evict_one() {
    const auto seconds = ledger_.recovery_seconds([](OpId) { return 1.0; });
    std::vector<ValueId> victims;
    for (ValueId v = 0; v < flow_.values(); ++v) {
      if (!ledger_.evictable(v)) continue;
      if (ledger_.fetchable(v) || std::isfinite(seconds[static_cast<std::size_t>(flow_.producer(v))]))
        victims.push_back(v);
    }
    if (!victims.empty()) {
      ledger_.evict(dice_.pick(victims));
      ++evicted;
    }
    give_up_one(seconds);
  }

  /// Contents elsewhere go, too: the value is made again from then on.
  void give_up_one(const std::vector<double>& seconds) {
    std::vector<ValueId> victims;
    for (const auto& [v, contents] : elsewhere_) {
      if (ledger_.may_give_up(v) && std::isfinite(seconds[static_cast<std::size_t>(flow_.producer(v))]))
        victims.push_back(v);
    }
    if (victims.empty() || !dice_.chance(30)) return;
    const ValueId victim = dice_.pick(victims);
    elsewhere_.erase(victim);
    ledger_.give_up(victim);
    ++given_up;
  }

  std::set<ValueId> residents() const {
    std::set<ValueId> all;
    for (ValueId v = 0; v < flow_.values(); ++v) {
      if (ledger_.resident(v)) all.insert(v);
    }
    return all;
  }
  void check_store() {
    std::set<ValueId> stored;
    for (const auto& [v, contents] : store_) stored.insert(v);
    ASSERT_EQ(stored, residents());
    // After the recording, held values that nothing needs are gone.
    for (ValueId v : stored) ASSERT_TRUE(ledger_.needed(v)) << "value " << v << " has no use";
  }

  void on_drop(ValueId v) { ASSERT_EQ(store_.erase(v), 1U) << "value " << v << " was dropped twice"; }

  Dice dice_;
  bool evicts_, offloads_;
  StepGraph graph_;
  Dataflow flow_;
  Ledger ledger_{flow_, [this](ValueId v) { on_drop(v); }};
  std::map<ValueId, std::uint64_t> store_, elsewhere_;
  Contents truth_;
  std::vector<ValueId> waiting_;  // saved tensors
};

void run_seeds(Happens happens, int passes) {
  int replayed = 0, taken_over = 0, copied = 0, evicted = 0, fetched = 0, given_up = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Machine machine(seed, happens);
    machine.record();
    for (int pass = 1; pass <= passes && !::testing::Test::HasFailure(); ++pass) machine.backward(pass == passes);
    if (!::testing::Test::HasFailure()) machine.expect_nothing_left();
    if (::testing::Test::HasFailure()) return;
    replayed += machine.replayed;
    taken_over += machine.taken_over;
    copied += machine.copied;
    evicted += machine.evicted;
    given_up += machine.given_up;
    fetched += machine.fetched;
  }
  // Not vacuous.
  EXPECT_GT(replayed, happens.offloads ? 1000 : 4000);
  EXPECT_GT(taken_over, 100);
  EXPECT_GT(copied, 100);
  if (happens.evictions) {
    EXPECT_GT(evicted, 200);
  }
  if (happens.offloads) {
    EXPECT_GT(fetched, 500);
    EXPECT_TRUE(given_up > 100 || !happens.evictions) << given_up;
  }
}

TEST(LedgerOnRandomSteps, MakesEveryValueAgainAndLeavesNothing) { run_seeds({}, 1); }
TEST(LedgerOnRandomSteps, ServesSeveralPassesOverTheSameGraph) { run_seeds({}, 3); }
TEST(LedgerOnRandomSteps, SurvivesEvictionsAtAnyTime) { run_seeds({.evictions = true}, 1); }
TEST(LedgerOnRandomSteps, SurvivesEvictionsOverSeveralPasses) { run_seeds({.evictions = true}, 2); }
TEST(LedgerOnRandomSteps, FetchesWhatIsElsewhere) { run_seeds({.offloads = true}, 2); }
TEST(LedgerOnRandomSteps, FetchesAgainWhatWasEvicted) { run_seeds({.evictions = true, .offloads = true}, 2); }

}  // namespace
}  // namespace snug::plan
