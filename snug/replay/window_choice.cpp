#include "snug/replay/window_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/tag.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/window_cost.h"
#include "snug/replay/moves.h"

namespace snug::replay {
namespace {

void count_in_all(std::vector<PlannedStep>& kinds, Bytes more) {
  for (PlannedStep& kind : kinds) kind.step.graph.add_static(0, static_cast<std::size_t>(memory::Tag::Weights), more);
}

/// A step of all its micro-batches: the one that updates, and the others.
struct WholeStep {
  std::size_t update = 0, other = 0;  // of the kinds
  std::int64_t others = 0;

  static WholeStep of(const std::vector<PlannedStep>& kinds, std::int64_t micro_batches) {
    const auto first = std::ranges::find(kinds, StepKind::First, [](const PlannedStep& k) { return k.step.kind; });
    return {.update = 0,
            .other = first == kinds.end() ? 0 : static_cast<std::size_t>(first - kinds.begin()),
            .others = micro_batches - 1};
  }
  template <class Of>
  auto sum(const Of& of) const {
    using Number = decltype(of(update));
    return of(update) + (others > 0 ? static_cast<Number>(others) * of(other) : Number());
  }
};

/// As the most is, where what is streamed lies on the host and on a disk. Measured within the budgets.
plan::MoveCost cost_of_copies(const StreamedTensors& streamed, memory::DeviceMemory& memory,
                              const std::optional<plan::Budget>& budget) {
  const StreamWindow::Totals totals = streamed.totals();
  const memory::Tier tier = 2 * totals.on_disk > totals.bytes ? memory::Tier::Disk : memory::Tier::Host;
  const std::optional<Bytes> limit = budget ? std::optional(budget->limit) : std::nullopt;
  std::optional<memory::HeldLimit> held;
  if (limit) held.emplace(memory, limit);
  Bytes room = room_within(limit, memory);
  const memory::TierBudgets budgets = streamed.tiers()->budgets();
  if (const auto& of_tier = tier == memory::Tier::Disk ? budgets.disk : budgets.host)
    room = std::min(room, *of_tier - streamed.tiers()->stats(tier).taken);
  return measured_move_cost(memory, tier, room);
}

}  // namespace

OpenedWindow open_best_window(StreamedTensors& streamed, std::vector<PlannedStep>& kinds, const plan::Budgets& budgets,
                              memory::DeviceMemory& memory, std::int64_t micro_batches) {
  const std::shared_ptr<StreamWindow>& window = streamed.window();
  if (!window) return {};
  if (window->device() != memory.device()) {
    throw UsageError(fmt::format("fit: what is streamed is of {}, and the budget of {}; give StreamOptions the device",
                                 window->device().str(), memory.device().str()));
  }
  const StreamWindow::Totals totals = streamed.totals();
  const plan::MoveCost copies = streamed.cost() ? *streamed.cost() : cost_of_copies(streamed, memory, budgets.own);
  const WholeStep whole = WholeStep::of(kinds, micro_batches);
  plan::StreamedStep step = kinds.front().step.streamed;
  for (const PlannedStep& kind : kinds) step.at_once = std::max(step.at_once, kind.step.streamed.at_once);
  const Bytes most = budgets.own ? budgets.own->limit : std::numeric_limits<Bytes>::max();
  std::vector<Bytes> sizes = plan::window_sizes(step, most);
  if (sizes.empty()) sizes.push_back(step.at_once);  // for the refusal
  Bytes counted = 0;
  const auto count = [&](Bytes bytes) {
    const Bytes taken = memory.rounded(WindowSlab::memory_for(bytes));
    count_in_all(kinds, taken - std::exchange(counted, taken));
  };
  const WindowAfterFailure as_before(&streamed);
  OpenedWindow best{.streamed = totals.bytes, .window = {}, .cost = {}};
  count(sizes.front());
  best.floor = smallest_budget(kinds);
  const Bytes smallest = counted;
  double least = std::numeric_limits<double>::infinity();
  std::optional<DoesNotFit> refusal;
  for (const Bytes bytes : sizes) {
    count(bytes);
    try {
      const std::vector<plan::MemoryPlan> plans = plan_all(kinds, budgets);
      const plan::Window one = plan::cheapest_window(step, bytes, copies);
      plan::WindowCost cost;
      const auto cost_of = [&](std::size_t kind) { return plan::window_cost(kinds[kind].step.streamed, one, copies); };
      cost.seconds = whole.sum([&](std::size_t kind) { return cost_of(kind).seconds; });
      cost.in = whole.sum([&](std::size_t kind) { return cost_of(kind).in; });
      cost.out = whole.sum([&](std::size_t kind) { return cost_of(kind).out; });
      const double seconds = cost.seconds + whole.sum([&](std::size_t kind) { return plans[kind].predicted_seconds; });
      if (seconds >= least) continue;
      least = seconds;
      best.window = one;
      best.cost = cost;
    } catch (const DoesNotFit& error) {
      if (!refusal) refusal = error;
      break;  // nor do larger ones
    }
  }
  if (least == std::numeric_limits<double>::infinity()) throw DoesNotFit(refusal.value());
  count(best.window.bytes);
  best.spare = counted - smallest;
  streamed.open(best.window);
  return best;
}

}  // namespace snug::replay
