#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "snug/base/bytes.h"
#include "snug/base/errors.h"
#include "snug/plan/budget.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug {

/// No plan of the strategy keeps the step under the budget. Nothing was trained, memory is as before.
class DoesNotFit : public Error {
 public:
  /// The parts of the smallest peak that a plan reaches, in bytes.
  struct Floor {
    Bytes budget = 0;
    Bytes floor = 0;
    Bytes unplanned_peak = 0;              ///< which budgets are shares of; 0 where that is not known
    std::array<Bytes, 6> static_by_tag{};  ///< by memory::Tag: what is there before the step begins
    Bytes step_bytes = 0;                  ///< what the step adds at its peak
    std::string peak_op;                   ///< the operator that runs there, empty between operators
    std::string strategy;                  ///< whose plans were tried; empty: the one that was given
    /// Where the recording of the step stopped. Unless it is whole, memory did not suffice for it with evictions alone,
    /// and the floor is what it would have taken there: a plan may do with a little less, and the rest of the step may
    /// take more.
    enum class Recorded : std::uint8_t {
      Whole,
      ToBudget,
      ToNeededBudget,  ///< and it cannot be recorded without one, as tensors are streamed
      ToMachine        ///< no budget in bytes was given: `budget` is what the machine has for this process
    };
    Recorded recorded = Recorded::Whole;
    std::string device{};  ///< a further one that the step uses and that all of this is of; empty: the step's own
    std::string change{};  ///< what would make it fit, behind the message; may be empty
  };
  explicit DoesNotFit(Floor floor);
  [[nodiscard]] const Floor& floor() const noexcept { return floor_; }
  /// The budget cannot be met by any training run of this configuration: wrong use.
  [[nodiscard]] int exit_code() const noexcept override { return 2; }

 private:
  Floor floor_;
};

namespace plan {
/// What to say when `least`, the plan of its strategy with the smallest peak, does not fit.
DoesNotFit::Floor floor_of(const StepGraph& graph, const MemoryPlan& least, Budget budget);
}  // namespace plan

}  // namespace snug
