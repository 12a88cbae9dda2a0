#pragma once

#include <optional>
#include <vector>

#include "snug/plan/search/chance.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// The plans that a search by chance goes to from another. Steps repeat their layers, so beside single values those of
/// one kind change together, or two of them change places: of operators of one name and geometry, and of one size.
class Neighbourhood {
 public:
  /// `least`: values of no more bytes keep their actions. `graph` must outlive it.
  Neighbourhood(const StepGraph& graph, Bytes least);

  /// No value has a choice.
  [[nodiscard]] bool empty() const noexcept { return values_.empty(); }

  /// Another plan than `plan` beside it, with another action for some values, a segment more, less or moved, or, where
  /// copies go on beside the step, more or less memory for them; its predictions are out of date. Nothing where chance
  /// leads nowhere. Must not be asked where it is empty.
  [[nodiscard]] std::optional<MemoryPlan> near(const MemoryPlan& plan, Chance& chance) const;

  /// Values of one kind in the order in which they are made; of each kind at least two.
  [[nodiscard]] const std::vector<std::vector<ValueId>>& kinds() const noexcept { return kinds_; }

 private:
  void change_one(MemoryPlan& plan, Chance& chance) const;
  bool change_kind(MemoryPlan& plan, Chance& chance) const;
  bool change_staging(MemoryPlan& plan, Chance& chance) const;
  bool change_segments(MemoryPlan& plan, Chance& chance) const;

  const StepGraph& graph_;
  std::vector<ValueId> values_;
  std::vector<std::vector<ValueId>> kinds_;
  Bytes largest_ = 0;  // of the values that may move
};

}  // namespace snug::plan
