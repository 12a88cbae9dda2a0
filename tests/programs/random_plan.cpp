#include "tests/programs/random_plan.h"

#include <algorithm>
#include <array>
#include <random>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/run/staging.h"

namespace snug::programs {
namespace {

/// A codec and numbers of any size, into which most contents do not fit, or do, whatever they are.
plan::Encoding random_encoding(Bytes bytes, Codecs codecs, std::mt19937& random) {
  constexpr auto kExact = static_cast<std::size_t>(plan::Codec::Exponents);
  const auto codec = static_cast<plan::Codec>(1 + random() % (codecs == Codecs::Exact ? kExact : plan::kCodecs - 1));
  const auto element = codec == plan::Codec::Bits ? 1 : static_cast<std::int32_t>(random() % 2 == 0 ? 4 : 8);
  return {.codec = codec,
          .element = codec >= plan::Codec::Exponents ? element / 2 : element,
          .content_bytes = random() % 4 == 0 ? bytes / 2 : 2 * bytes + 64,
          .bytes = 2 * bytes + 64};
}

}  // namespace

plan::MemoryPlan random_plan(plan::StepGraph& graph, std::uint32_t seed, Codecs codecs) {
  std::mt19937 random(seed);
  const auto roll = [&](std::size_t sides) {
    return static_cast<plan::OpId>(random() % std::max<std::size_t>(sides, 1));
  };
  plan::MemoryPlan plan = plan::bare_plan(graph);
  const auto percent = random() % 100;
  for (plan::ValueId v = 0; v < graph.flow.values(); ++v) {
    if (graph.flow.is_leaf(v) || random() % 100 >= percent) continue;
    plan.actions[plan::at(v)] =
        std::array{plan::kMove, plan::kMoveToDisk, plan::kKeep, plan::kKeep, plan::kKeep}[random() % 5];
    plan::ValueInfo& info = graph.values[plan::at(v)];
    if (random() % 4 != 0 || !info.saved || info.bytes == 0) continue;
    info.encodings = {random_encoding(info.bytes, codecs, random)};
    plan.actions[plan::at(v)] = plan::compressed(info.encodings.front().codec);
  }
  plan.segments.clear();
  for (int tries = roll(6); tries > 0; --tries) {
    const plan::OpId begin = roll(graph.ops.size()), end = begin + 1 + roll(12);
    const auto nests = [&](const plan::SegmentRange& s) {
      return end <= s.begin || s.end <= begin ||
             (begin >= s.begin && end <= s.end && (begin > s.begin || end < s.end)) ||
             (s.begin >= begin && s.end <= end && (s.begin > begin || s.end < end));
    };
    if (end <= graph.flow.ops() && std::ranges::all_of(plan.segments, nests)) plan.segments.push_back({begin, end});
  }
  plan = plan::staged(graph, std::move(plan), 1 << roll(14), random() % 3 == 0 ? 0 : 1 << roll(14));
  for (plan::ValueId v = 0; v < graph.flow.values(); ++v) {
    if (plan::is_moved(plan.action(v))) plan.staging.order.push_back(v);
  }
  std::ranges::shuffle(plan.staging.order, random);
  return plan::predicted(graph, std::move(plan));
}

}  // namespace snug::programs
