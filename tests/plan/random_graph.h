#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan::synthetic {

/// Draws that are the same on every platform: the library's distributions are not.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  /// From 0 to `sides` - 1.
  int roll(int sides) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(sides)); }
  bool chance(int percent) { return roll(100) < percent; }
  template <class T>
  T pick(const std::vector<T>& items) {
    return items[static_cast<std::size_t>(roll(static_cast<int>(items.size())))];
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i)
      std::swap(items[i - 1], items[static_cast<std::size_t>(roll(static_cast<int>(i)))]);
  }

 private:
  std::mt19937_64 engine_;
};

/// A step of random operators: several inputs, one or two outputs, some written in place (read first or not), some
/// values saved more than once, and a backward pass in reverse order.
inline StepGraph random_graph(std::uint64_t seed, int ops) {
  Dice dice(seed);
  GraphBuilder b(dice.roll(5) * 1_MiB);
  std::vector<ValueId> leaves;
  for (int i = 0; i < 3; ++i) leaves.push_back(b.leaf());
  std::vector<ValueId> live;                // of the program, leaves not
  std::vector<std::vector<ValueId>> nodes;  // what each backward node unpacks
  for (int i = 0; i < ops; ++i) {
    std::vector<ValueId> inputs{dice.pick(leaves)};
    for (int k = dice.roll(3); k >= 0; --k) {
      // Near ones more often: nets are deep.
      const int reach = std::min(static_cast<int>(live.size()), dice.chance(80) ? 4 : 40);
      if (reach > 0) inputs.push_back(live[live.size() - 1 - static_cast<std::size_t>(dice.roll(reach))]);
    }
    std::vector<ValueId> made;
    const auto input_count = inputs.size();
    ValueId target = kNoValue;
    if (dice.chance(25) && !live.empty()) {
      target = dice.chance(70) ? inputs[static_cast<std::size_t>(dice.roll(static_cast<int>(input_count)))]
                               : dice.pick(live);
      if (std::ranges::find(leaves, target) != leaves.end()) target = kNoValue;
    }
    b.begin_op("op" + std::to_string(dice.roll(4)), inputs, 0.5 + dice.roll(8), dice.roll(3) * 8_KiB);
    if (target != kNoValue) {
      made.push_back(b.written(target));
      std::erase(live, target);
    }
    if (target == kNoValue || dice.chance(30)) made.push_back(b.fresh((1 + dice.roll(16)) * 16_KiB));
    if (dice.chance(15)) made.push_back(b.fresh((1 + dice.roll(16)) * 4_KiB));
    live.insert(live.end(), made.begin(), made.end());
    std::vector<ValueId> saved;
    for (ValueId v : made) {
      if (dice.chance(40)) saved.push_back(v);
    }
    for (ValueId v : inputs) {
      if (v != target && dice.chance(30)) saved.push_back(v);
    }
    for (ValueId v : saved) b.save(v);
    nodes.push_back(std::move(saved));
    while (!live.empty() && dice.chance(45)) {
      const ValueId dead = dice.pick(live);
      b.die(dead);
      std::erase(live, dead);
    }
    if (dice.chance(20)) b.other(dice.roll(32) * 1_KiB, 0);
  }
  b.settle();
  // The program still refers to some, and lets go of them on the way back.
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    b.node(*node, dice.roll(8) * 16_KiB);
    if (!live.empty() && dice.chance(40)) {
      b.die(live.back());
      live.pop_back();
    }
  }
  for (ValueId v : live) b.die(v);
  return b.take();
}

/// Ranges over the operators of a step that nest or are disjoint.
inline std::vector<SegmentRange> random_segments(Dice& dice, OpId ops) {
  std::vector<SegmentRange> ranges;
  for (OpId begin = 0; begin < ops;) {
    const OpId end = std::min<OpId>(ops, begin + 2 + dice.roll(12));
    if (dice.chance(60)) {
      ranges.push_back({begin, end});
      const OpId middle = begin + dice.roll(end - begin);
      if (dice.chance(40) && middle > begin) ranges.push_back({middle, end});
      if (dice.chance(20) && middle > begin) ranges.push_back({begin, middle});
    }
    begin = end;
  }
  return ranges;
}

/// Keeps some of the values, and replays in random segments.
inline MemoryPlan random_plan(std::uint64_t seed, const StepGraph& graph) {
  Dice dice(seed);
  MemoryPlan plan;
  plan.strategy = "random";
  plan.fingerprint = graph.fingerprint();
  const int kept = dice.roll(100);
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (graph.flow.is_leaf(v) || dice.chance(kept)) {
      plan.actions.push_back(kKeep);
    } else {
      plan.actions.push_back(kRecompute);
    }
  }
  if (dice.chance(60)) plan.segments = random_segments(dice, graph.flow.ops());
  return plan;
}

}  // namespace snug::plan::synthetic
