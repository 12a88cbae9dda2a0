#include "snug/plan/does_not_fit.h"

#include <fmt/format.h>

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

Bytes static_bytes(const DoesNotFit::Floor& floor) {
  return std::accumulate(floor.static_by_tag.begin(), floor.static_by_tag.end(), Bytes{0});
}

/// The smallest whole percentage that will do as a budget: a share has the reserve on top of it (Budget::for_share).
std::string share_that_fits(const DoesNotFit::Floor& floor) {
  if (floor.unplanned_peak == 0) return {};
  const auto least = static_cast<double>(floor.step_bytes + static_bytes(floor));
  const double percent = std::ceil(100.0 * least / static_cast<double>(floor.unplanned_peak));
  if (percent > 100) return {};  // no budget that can be given
  return fmt::format(", {}% of what the step takes unplanned", percent);
}

/// What was there before the step does not get smaller with it, but for batches.
std::string what_helps(const DoesNotFit::Floor& floor) {
  constexpr std::size_t kOfTheModel = 3;  // the first parts
  const Bytes of_model =
      std::accumulate(floor.static_by_tag.begin(), floor.static_by_tag.begin() + kOfTheModel, Bytes{0});
  if (of_model < floor.budget) return ", or use a smaller batch or sequence";
  return fmt::format("; no smaller step helps, as what is there before it takes {}", format_bytes(static_bytes(floor)));
}

std::string message(const DoesNotFit::Floor& floor) {
  const std::string of_device = floor.device.empty() ? std::string() : " of " + floor.device;
  std::string parts;
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    if (floor.static_by_tag[i] > 0) parts += fmt::format("{} {}, ", kParts[i], format_bytes(floor.static_by_tag[i]));
  }
  parts += fmt::format("the step itself {}", format_bytes(floor.step_bytes));
  if (const Bytes reserve = floor.floor - floor.step_bytes - static_bytes(floor); reserve > 0) {
    parts += fmt::format(", the allocator's reserve {}", format_bytes(reserve));
  }
  if (!floor.peak_op.empty()) parts += fmt::format(" at {}", floor.peak_op);
  using Recorded = DoesNotFit::Floor::Recorded;
  if (floor.recorded == Recorded::ToMachine) {
    return fmt::format(
        "does not fit: this machine has {} for this process, and the step cannot be recorded in them: where that "
        "stopped it would have taken {} ({} bytes: {}), and all of it takes more; use a smaller batch or sequence{}",
        format_bytes(floor.budget), format_bytes(floor.floor), floor.floor, parts, floor.change);
  }
  if (floor.recorded != Recorded::Whole) {
    return fmt::format(
        "does not fit: the budget{} is {}, and the step cannot be recorded within it: where that stopped it would have "
        "taken {} ({} bytes: {}), and all of it takes more; {}raise the budget{}{}",
        of_device, format_bytes(floor.budget), format_bytes(floor.floor), floor.floor, parts,
        floor.recorded == Recorded::ToNeededBudget
            ? ""
            : "a plan without a budget records it all and says the smallest (snug plan, snug.plan); ",
        what_helps(floor), floor.change);
  }
  std::string budget = format_bytes(floor.budget);
  if (budget == format_bytes(floor.floor)) budget += fmt::format(" ({} bytes)", floor.budget);
  return fmt::format(
      "does not fit: the budget{} is {}, but {} is {} ({} bytes{}: {}); raise the budget to that{}{}", of_device,
      budget,
      floor.strategy.empty() ? "the smallest that the given plan can do with"
                             : fmt::format("the smallest that strategy {} can do with", floor.strategy),
      format_bytes(floor.floor), floor.floor, share_that_fits(floor), parts,
      floor.strategy.empty() ? ", or leave out the plan, so that another one is searched" : what_helps(floor),
      floor.change);
}

}  // namespace

DoesNotFit::DoesNotFit(Floor floor) : Error(message(floor)), floor_(std::move(floor)) {}

DoesNotFit::Floor plan::floor_of(const StepGraph& graph, const MemoryPlan& least, Budget budget) {
  const OpId op = simulate(graph, least).peak_op;
  return {.budget = budget.limit,
          .floor = budget.floor_for(least.predicted_peak),
          .unplanned_peak = plan_none(graph).predicted_peak,
          .static_by_tag = graph.static_by_tag,
          .step_bytes = least.predicted_peak - graph.static_bytes,
          .peak_op = op == kNoOp ? std::string() : graph.ops[static_cast<std::size_t>(op)].name,
          .strategy = least.strategy};
}

}  // namespace snug
