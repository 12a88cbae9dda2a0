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
#include "snug/plan/step/together.h"
#include "snug/replay/agreement.h"
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

/// The largest that one of the group has, where all must have the same plans; else its own.
Bytes agreed(Bytes own, const std::vector<PlannedStep>& kinds, Agreement& group) {
  const auto is_common = [](const PlannedStep& kind) { return plan::may_replay_together(kind.step.graph); };
  if (std::ranges::none_of(kinds, is_common)) return own;
  (void)ask(group, Vote::Yes);  // who has thrown says so
  auto largest = static_cast<double>(own);
  group.largest({&largest, 1});
  return static_cast<Bytes>(largest);
}

/// Of steps with windows of different sizes.
class WindowChoice {
 public:
  WindowChoice(const StreamedTensors& streamed, std::vector<PlannedStep>& kinds, const plan::Budgets& budgets,
               memory::DeviceMemory& memory, std::int64_t micro_batches)
      : kinds_(kinds),
        budgets_(budgets),
        memory_(memory),
        whole_(WholeStep::of(kinds, micro_batches)),
        copies_(streamed.cost() ? *streamed.cost() : cost_of_copies(streamed, memory, budgets.own)),
        step_(kinds.front().step.streamed),
        best_{.streamed = streamed.totals().bytes, .window = {}, .cost = {}} {
    for (const PlannedStep& kind : kinds) step_.at_once = std::max(step_.at_once, kind.step.streamed.at_once);
  }

  /// The one with which they take the least time.
  void choose() {
    std::vector<Bytes> sizes =
        plan::window_sizes(step_, budgets_.own ? budgets_.own->limit : std::numeric_limits<Bytes>::max());
    if (sizes.empty()) sizes.push_back(step_.at_once);  // for the refusal
    count(sizes.front());
    best_.floor = smallest_budget(kinds_);
    smallest_ = counted_;
    double least = std::numeric_limits<double>::infinity();
    std::optional<DoesNotFit> refusal;
    for (const Bytes bytes : sizes) {
      count(bytes);
      try {
        const std::vector<plan::MemoryPlan> plans = plan_all(kinds_, budgets_);
        const OpenedWindow one = with(bytes);
        const double seconds =
            one.cost.seconds + whole_.sum([&](std::size_t kind) { return plans[kind].predicted_seconds; });
        if (seconds >= least) continue;
        least = seconds;
        best_ = one;
      } catch (const DoesNotFit& error) {
        if (!refusal) refusal = error;
        break;  // nor do larger ones
      }
    }
    if (least == std::numeric_limits<double>::infinity()) throw DoesNotFit(refusal.value());
  }
  [[nodiscard]] Bytes bytes() const { return best_.window.bytes; }

  /// With that one.
  OpenedWindow open(Bytes bytes, StreamedTensors& streamed) {
    if (bytes != best_.window.bytes) best_ = with(bytes);
    count(bytes);
    best_.spare = counted_ - smallest_;
    streamed.open(best_.window);
    return best_;
  }

 private:
  /// Its memory is that of the steps from here on.
  void count(Bytes bytes) {
    const Bytes taken = memory_.rounded(WindowSlab::memory_for(bytes));
    count_in_all(kinds_, taken - std::exchange(counted_, taken));
  }
  [[nodiscard]] OpenedWindow with(Bytes bytes) const {
    OpenedWindow one = best_;
    one.window = plan::cheapest_window(step_, bytes, copies_);
    const auto cost_of = [&](std::size_t kind) {
      return plan::window_cost(kinds_[kind].step.streamed, one.window, copies_);
    };
    one.cost.seconds = whole_.sum([&](std::size_t kind) { return cost_of(kind).seconds; });
    one.cost.in = whole_.sum([&](std::size_t kind) { return cost_of(kind).in; });
    one.cost.out = whole_.sum([&](std::size_t kind) { return cost_of(kind).out; });
    return one;
  }

  std::vector<PlannedStep>& kinds_;
  const plan::Budgets& budgets_;
  memory::DeviceMemory& memory_;
  WholeStep whole_;
  plan::MoveCost copies_;
  plan::StreamedStep step_;
  OpenedWindow best_;
  Bytes counted_ = 0, smallest_ = 0;
};

}  // namespace

OpenedWindow open_best_window(StreamedTensors* streamed, std::vector<PlannedStep>& kinds, const plan::Budgets& budgets,
                              memory::DeviceMemory& memory, std::int64_t micro_batches, Agreement& group) {
  if (streamed == nullptr || !streamed->window()) {
    (void)agreed(0, kinds, group);  // the others count on this process
    return {};
  }
  if (const c10::Device device = streamed->window()->device(); device != memory.device()) {
    throw UsageError(fmt::format("fit: what is streamed is of {}, and the budget of {}; give StreamOptions the device",
                                 device.str(), memory.device().str()));
  }
  const WindowAfterFailure as_before(streamed);
  WindowChoice choice(*streamed, kinds, budgets, memory, micro_batches);
  choice.choose();
  return choice.open(agreed(choice.bytes(), kinds, group), *streamed);
}

}  // namespace snug::replay
