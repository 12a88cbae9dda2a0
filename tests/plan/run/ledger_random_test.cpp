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

class Machine {
 public:
  Machine(std::uint64_t seed, bool evicts)
      : dice_(seed), evicts_(evicts), graph_(synthetic::random_graph(seed, 5 + dice_.roll(60))) {
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
      }
      if (evicts_ && dice_.chance(20)) evict_one();
    }
    ledger_.settle();
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
    check_store();
  }

  void expect_nothing_left() {
    EXPECT_TRUE(store_.empty()) << "value " << store_.begin()->first << " is left";
    for (ValueId v = 0; v < flow_.values(); ++v) {
      EXPECT_FALSE(ledger_.resident(v)) << "value " << v;
      EXPECT_FALSE(ledger_.needed(v)) << "value " << v;
    }
  }

  int replayed = 0, taken_over = 0, copied = 0, evicted = 0;

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

  void replay(ValueId target) {
    const Replay replay = ledger_.schedule(target);
    ASSERT_FALSE(replay.steps.empty());
    const std::set<ValueId> resident_before = residents();
    ledger_.pin(replay);
    OpId previous = kNoOp;
    for (const ReplayStep& step : replay.steps) {
      ASSERT_GT(step.op, previous) << "out of the order of the recording";
      previous = step.op;
      run(step);
      // Memory runs out in the middle of it.
      if (evicts_ && dice_.chance(15)) evict_one();
    }
    ledger_.unpin(replay);
    // Work that nobody asked for: a step none of whose results was read later or is there now.
    for (std::size_t i = 0; i < replay.steps.size(); ++i) expect_useful(replay, i, resident_before);
  }

  void run(const ReplayStep& step) {
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

  void expect_useful(const Replay& replay, std::size_t i, const std::set<ValueId>& resident_before) {
    bool useful = false;
    for (const Output& out : flow_.outputs(replay.steps[i].op)) {
      useful = useful || (!resident_before.contains(out.value) && ledger_.resident(out.value));
      for (std::size_t k = i + 1; k < replay.steps.size(); ++k) {
        const auto inputs = flow_.inputs(replay.steps[k].op);
        useful =
            useful || (!resident_before.contains(out.value) && std::ranges::find(inputs, out.value) != inputs.end());
      }
    }
    // What was made along the way may have been evicted since.
    EXPECT_TRUE(useful || evicts_) << "operator " << replay.steps[i].op << " ran for nothing";
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
    ledger_.release(v, true);
    for (ValueId h : held_before) EXPECT_TRUE(ledger_.held(h) || !ledger_.needed(h)) << "value " << h << " was needed";
  }

  void evict_one() {
    const auto seconds = ledger_.recovery_seconds([](OpId) { return 1.0; });
    std::vector<ValueId> victims;
    for (ValueId v = 0; v < flow_.values(); ++v) {
      if (ledger_.evictable(v) && std::isfinite(seconds[static_cast<std::size_t>(flow_.producer(v))]))
        victims.push_back(v);
    }
    if (victims.empty()) return;
    ledger_.evict(dice_.pick(victims));
    ++evicted;
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
  bool evicts_;
  StepGraph graph_;
  Dataflow flow_;
  Ledger ledger_{flow_, [this](ValueId v) { on_drop(v); }};
  std::map<ValueId, std::uint64_t> store_;
  Contents truth_;
  std::vector<ValueId> waiting_;  // saved tensors
};

void run_seeds(bool evicts, int passes) {
  int replayed = 0, taken_over = 0, copied = 0, evicted = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Machine machine(seed, evicts);
    machine.record();
    for (int pass = 1; pass <= passes && !testing::Test::HasFailure(); ++pass) machine.backward(pass == passes);
    if (!testing::Test::HasFailure()) machine.expect_nothing_left();
    if (testing::Test::HasFailure()) return;
    replayed += machine.replayed;
    taken_over += machine.taken_over;
    copied += machine.copied;
    evicted += machine.evicted;
  }
  // Not vacuous.
  EXPECT_GT(replayed, 4000);
  EXPECT_GT(taken_over, 100);
  EXPECT_GT(copied, 100);
  if (evicts) {
    EXPECT_GT(evicted, 200);
  }
}

TEST(LedgerOnRandomSteps, MakesEveryValueAgainAndLeavesNothing) { run_seeds(false, 1); }
TEST(LedgerOnRandomSteps, ServesSeveralPassesOverTheSameGraph) { run_seeds(false, 3); }
TEST(LedgerOnRandomSteps, SurvivesEvictionsAtAnyTime) { run_seeds(true, 1); }
TEST(LedgerOnRandomSteps, SurvivesEvictionsOverSeveralPasses) { run_seeds(true, 2); }

}  // namespace
}  // namespace snug::plan
