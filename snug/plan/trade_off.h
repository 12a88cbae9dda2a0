#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/budget.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

struct SearchOptions {
  /// Operators that descents may simulate, and annealing again as many, twice where copies hide, in steps of up to 1000
  /// operators. The default takes about a second, or a few where copies hide.
  std::int64_t simulated_ops = 4'000'000;
};

/// The plans that are worth having for one step: each has a smaller peak than all that are faster. They do not depend
/// on a budget, so a smaller budget never gets a larger peak, and a larger one never a slower plan. Where values may be
/// moved (StepGraph::moves), or are left to a lossy codec, none is slower than what does nothing of it.
class TradeOff {
 public:
  /// Searches: the relaxation of the whole step, the dynamic program over its chain of pieces, the presets, descents
  /// from keeping everything, local search and annealing, and every plan there is when the step is tiny; all checked by
  /// the simulator. Pure and deterministic.
  explicit TradeOff(const StepGraph& graph, SearchOptions options = {});
  /// One that was searched for the same graph elsewhere, as to_json() has it. Throws Error for what is no such.
  [[nodiscard]] static TradeOff from_json(const nlohmann::json& json);
  [[nodiscard]] nlohmann::ordered_json to_json() const;
  friend bool operator==(const TradeOff& a, const TradeOff& b);

  /// The fastest plan that fits; what the budget leaves unused is spent on plans between two of the front. `graph` is
  /// the one that was searched, but its static bytes may be others now. Throws DoesNotFit, naming the smallest budget
  /// that would do.
  [[nodiscard]] MemoryPlan best(const StepGraph& graph, Budget budget) const;

  /// The plan that has floor() as its peak, for `graph` as best() takes it.
  [[nodiscard]] MemoryPlan lowest(const StepGraph& graph) const;

  /// By falling peak; at least one.
  [[nodiscard]] const std::vector<MemoryPlan>& plans() const noexcept { return plans_; }

  /// The smallest peak that can be asked for: found without seconds, which differ from recording to recording, so that
  /// a budget that is refused today does not fit tomorrow. The last of the plans may have a smaller one.
  [[nodiscard]] Bytes floor() const noexcept { return lowest_.predicted_peak; }

 private:
  TradeOff() = default;
  [[nodiscard]] MemoryPlan best_of_front(const StepGraph& graph, Budget budget) const;
  /// A plan that was searched for, for the static bytes of `graph`.
  [[nodiscard]] MemoryPlan as_now(const StepGraph& graph, MemoryPlan plan) const;
  [[nodiscard]] std::vector<MemoryPlan> between(const StepGraph& graph, std::size_t faster) const;

  std::vector<MemoryPlan> plans_;
  Bytes static_bytes_ = 0, others_held_ = 0;   // of the graph that was searched
  MemoryPlan lowest_;                          // that sets the floor
  std::shared_ptr<const TradeOff> with_less_;  // of plans that do not move, or are not lossy, where others may
};

}  // namespace snug::plan
