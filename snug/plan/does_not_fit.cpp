#include "snug/plan/does_not_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"

namespace snug {
namespace {

// In the order of memory::Tag, which lies in a room beside this one.
constexpr std::array<std::string_view, 6> kParts = {"weights",     "gradients", "optimizer",
                                                    "activations", "staging",   "workspace"};

std::string message(const DoesNotFit::Floor& floor) {
  std::string parts;
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    if (floor.static_by_tag[i] > 0) parts += fmt::format("{} {}, ", kParts[i], format_bytes(floor.static_by_tag[i]));
  }
  parts += fmt::format("the step itself {}", format_bytes(floor.step_bytes));
  if (const Bytes reserve = floor.floor - floor.step_bytes -
                            std::accumulate(floor.static_by_tag.begin(), floor.static_by_tag.end(), Bytes{0});
      reserve > 0) {
    parts += fmt::format(", the allocator's reserve {}", format_bytes(reserve));
  }
  if (!floor.peak_op.empty()) parts += fmt::format(" at {}", floor.peak_op);
  if (floor.only_begun) {
    return fmt::format(
        "does not fit: the budget is {}, and the step cannot be recorded within it: where that stopped it would have "
        "taken {} ({} bytes: {}), and all of it takes more; a plan without a budget records it all and says the "
        "smallest (snug plan, snug.plan); raise the budget, or use a smaller batch or sequence",
        format_bytes(floor.budget), format_bytes(floor.floor), floor.floor, parts);
  }
  std::string budget = format_bytes(floor.budget);
  if (budget == format_bytes(floor.floor)) budget += fmt::format(" ({} bytes)", floor.budget);
  const std::string share =
      floor.percent > 0 ? fmt::format(", {}% of what the step takes unplanned", floor.percent) : std::string();
  return fmt::format(
      "does not fit: the budget is {}, but the smallest that strategy {} can do with is {} ({} bytes{}: {}); raise the "
      "budget to that, or use a smaller batch or sequence",
      budget, floor.strategy, format_bytes(floor.floor), floor.floor, share, parts);
}

}  // namespace

DoesNotFit::DoesNotFit(Floor floor) : Error(message(floor)), floor_(std::move(floor)) {}

DoesNotFit::Floor plan::floor_of(const StepGraph& graph, const MemoryPlan& least, Budget budget) {
  const OpId op = simulate(graph, least).peak_op;
  const auto unplanned = static_cast<double>(std::max<Bytes>(plan_none(graph).predicted_peak, 1));
  return {.budget = budget.limit,
          .floor = budget.floor_for(least.predicted_peak),
          .percent = static_cast<int>(std::ceil(100.0 * static_cast<double>(least.predicted_peak) / unplanned)),
          .static_by_tag = graph.static_by_tag,
          .step_bytes = least.predicted_peak - graph.static_bytes,
          .peak_op = op == kNoOp ? std::string() : graph.ops[static_cast<std::size_t>(op)].name,
          .strategy = least.strategy};
}

}  // namespace snug
