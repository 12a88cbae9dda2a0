#include "snug/plan/search/lowest_peak.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/search/chain.h"
#include "snug/plan/search/chain_program.h"
#include "snug/plan/search/change.h"
#include "snug/plan/search/front.h"
#include "snug/plan/search/price_search.h"
#include "snug/plan/search/timeless.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

constexpr std::size_t kStarts = 3;
constexpr std::size_t kFewOps = 500;  // below it, time is no matter
constexpr std::size_t kFinerPieces = 128;
constexpr double kTimelessCopy = 2e-9;  // seconds for a byte, each way
constexpr std::size_t kRooms = 160, kSmallestRooms = 16;

class LowestPeak {
 public:
  LowestPeak(const StepGraph& graph, std::size_t pieces) : graph_(graph), ranges_(likely_segments(graph, pieces, 1)) {
    std::vector<char> read(graph.values.size(), 0);
    for (OpId op = 0; op < graph.flow.ops(); ++op) {
      for (ValueId v : graph.flow.inputs(op)) read[at(v)] = 1;
    }
    for (ValueId v = 0; v < graph.flow.values(); ++v) {
      const bool matters = graph.values[at(v)].saved || read[at(v)];
      if (matters && has_choice(graph, v) && graph.step_bytes(v) > 0) values_.push_back(v);
    }
    std::ranges::stable_sort(values_, std::ranges::greater(), [&](ValueId v) { return graph.step_bytes(v); });
  }

  /// The plan at the end of the way down.
  MemoryPlan from(MemoryPlan plan, Effort& effort) {
    bool lower = true;
    while (lower && effort.left > 0) {
      lower = false;
      for (std::size_t i = 0; i < values_.size() && effort.left > 0; ++i) {
        for (const Action& action : other_actions(graph_, plan, values_[i]))
          lower |= accept(with_action(plan, values_[i], action), plan, effort);
      }
      for (std::size_t i = plan.segments.size(); i-- > 0 && effort.left > 0;) {
        if (i >= plan.segments.size()) continue;  // several may have gone at once
        lower |= accept(*changed(plan, ToggleSegment{plan.segments[i]}), plan, effort);
      }
      for (std::size_t i = 0; i < ranges_.size() && effort.left > 0; ++i) {
        if (std::ranges::find(plan.segments, ranges_[i]) != plan.segments.end()) continue;
        if (auto more = changed(plan, ToggleSegment{ranges_[i]})) lower |= accept(std::move(*more), plan, effort);
      }
    }
    return plan;
  }

 private:
  bool accept(MemoryPlan candidate, MemoryPlan& plan, Effort& effort) const {
    auto useful = predicted_if_useful(graph_, std::move(candidate), &effort);
    if (!useful || useful->predicted_peak >= plan.predicted_peak) return false;
    plan = std::move(*useful);
    return true;
  }

  const StepGraph& graph_;
  std::vector<SegmentRange> ranges_;
  std::vector<ValueId> values_;
};

}  // namespace

namespace {

/// Plans of the smallest budgets for a chain of more pieces than is worth it for large ones, below `most`.
std::vector<MemoryPlan> of_small_pieces(const StepGraph& graph, Bytes least, Bytes most) {
  std::vector<MemoryPlan> plans;
  const Chain chain = make_chain(graph, kFinerPieces);
  // Rooms are as fine as their range is narrow.
  for (bool lower = true; lower;) {
    lower = false;
    std::vector<MemoryPlan> found = chain_plans(graph, chain, least, most, kRooms);
    for (std::size_t i = found.size(); i-- > 0 && found.size() - i <= kSmallestRooms;) {
      auto useful = predicted_if_useful(graph, std::move(found[i]));
      if (!useful || useful->predicted_peak >= most) continue;
      lower = (most - useful->predicted_peak) > (most - least) / 8;
      most = useful->predicted_peak;
      plans.push_back(std::move(*useful));
    }
  }
  return plans;
}

}  // namespace

std::vector<MemoryPlan> low_plans(const StepGraph& graph, std::size_t pieces, Effort effort) {
  StepGraph timeless = graph;
  for (OpId op = 0; op < timeless.flow.ops(); ++op) {
    Bytes bytes = 0;
    for (const Output& out : timeless.flow.outputs(op)) bytes += timeless.values[at(out.value)].bytes;
    timeless.ops[at(op)].seconds = timeless_seconds(timeless.ops[at(op)].name, bytes);
  }
  for (ValueInfo& value : timeless.values) {
    for (Encoding& encoding : value.encodings)
      encoding.encode_seconds = encoding.decode_seconds = kTimelessCopy * static_cast<double>(value.bytes);
  }
  timeless.step_seconds = 1;
  for (std::optional<MoveCost>* const cost : {&timeless.moves.host, &timeless.moves.disk}) {
    // Between what is cheap to make again and what is not.
    if (!*cost) continue;
    (*cost)->seconds_per_copy = (*cost)->own_out_seconds_per_byte = (*cost)->own_in_seconds_per_byte = 0;
    (*cost)->out_seconds_per_byte = (*cost)->in_seconds_per_byte = kTimelessCopy;
  }
  std::vector<MemoryPlan> plans{plan_every_block(timeless)};
  const Bytes least = lower_bound_of_peak(timeless), most = plan_none(timeless).predicted_peak;
  std::vector<MemoryPlan> found = chain_plans(timeless, make_chain(timeless, pieces), least, most);
  for (std::size_t i = found.size() / 2; i < found.size(); ++i) {  // those of large budgets have no small peaks
    if (auto useful = predicted_if_useful(timeless, std::move(found[i]))) plans.push_back(std::move(*useful));
  }
  const Bytes low = std::ranges::min_element(plans, {}, &MemoryPlan::predicted_peak)->predicted_peak;
  std::ranges::move(of_small_pieces(timeless, least, low), std::back_inserter(plans));
  if (timeless.ops.size() < kFewOps) std::ranges::move(priced_plans(timeless), std::back_inserter(plans));
  std::ranges::stable_sort(plans, {}, &MemoryPlan::predicted_peak);
  LowestPeak descent(timeless, pieces);
  const std::size_t starts = std::min(kStarts, plans.size());
  for (std::size_t i = 0; i < starts; ++i) {
    Effort share{effort.left / static_cast<std::int64_t>(starts)};
    plans.push_back(descent.from(plans[i], share));
  }
  return plans;
}

}  // namespace snug::plan
