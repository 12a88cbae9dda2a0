#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/tiers.h"
#include "snug/plan/budget.h"
#include "snug/plan/planner.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"
#include "snug/record/verify_replay.h"
#include "snug/replay/agreement.h"
#include "snug/replay/device_budget.h"
#include "snug/replay/planned_step.h"
#include "snug/replay/record_step.h"
#include "snug/replay/step_arena.h"
#include "snug/replay/step_trace.h"

namespace snug {
class StreamedTensors;

/// What becomes of NaN and infinities in a step.
enum class Anomalies : std::uint8_t {
  Ignored,
  Refused  ///< the first result or gradient that holds one throws Error, naming the operator and its module. Slow
};

/// What of their plans steps follow.
enum class Follow : std::uint8_t {
  All,
  LossyAlone  ///< what is left to lossy codecs; all else is kept: the step that one under the whole plan is, to the bit
};

/// Runs training steps under a plan and a hard limit. Steps may differ in shapes and operators. Those that were
/// recorded before have plans from the start; any other gets one when it has come up twice: the first unknown one is
/// only noticed, from then on each is recorded as it runs. While a session lives, the device's allocator hands out no
/// more than the budget, to anybody in the process. One thread at a time. Several sessions may exist: in a step of one
/// its own budget holds, in between that of the newest, and each budget is for what all of them have in memory.
class Session {
 public:
  /// What the latest step did.
  struct StepReport {
    std::int64_t replayed_ops = 0;
    std::int64_t compared_values = 0;  ///< recomputed ones whose bits were compared with the forward pass's
    Bytes moved_bytes = 0;             ///< out of the device's memory
    Bytes compressed_bytes = 0;        ///< that were put there in fewer, with the same bits
    Bytes lossy_bytes = 0;             ///< of which backward got what a lossy codec had left of them
    std::int64_t evictions = 0;        ///< values dropped because the limit was near, not because the plan says so
    bool followed_plan = true;
    std::string divergence;  ///< where it first differed from all known steps, or why it had no plan, else empty
    std::size_t known = 1;   ///< steps that the session has plans for
    std::vector<std::string> opaque;  ///< what is kept because something outside of ATen filled it, with the cure
    bool planned_anew = false;  ///< the step was an unknown one and was recorded as it ran: it has a plan from now on,
                                ///< or from where a search in the background is over
    bool stopped_planning =
        false;  ///< from this step on, new ones get no plans and run by eviction: too many came only
                ///< once, or never followed theirs. Planning begins again when steps come again
  };

  /// For all kinds of steps that are to come, the first of which goes backward. No budget: no limit, and plans as the
  /// planners make them then. `others`: the same of further devices that the steps use, whose memory was measured when
  /// they were recorded (RecordOptions::other_budgets); where it was not, values there are evicted as needed. Throws
  /// DoesNotFit, of the kind that takes most, when there is one that does not fit; Error when that is so in another
  /// process of the group, or another has failed to make its own; UsageError for budgets that are not positive, and a
  /// device that has two. A step of the kind Evaluation is planned here and not run: it has nothing to decide, and runs
  /// as it is written, under the limit.
  Session(std::vector<replay::PlannedStep> kinds, std::optional<plan::Budget> budget, memory::DeviceMemory& memory,
          std::shared_ptr<Agreement> agreement = alone(), std::vector<DeviceBudget> others = {});
  /// The same with planners by a strategy, see replay::planned.
  Session(std::vector<replay::RecordedStep> kinds, std::string_view strategy, std::optional<plan::Budget> budget,
          memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement = alone(),
          std::vector<DeviceBudget> others = {});
  /// For one kind.
  Session(replay::RecordedStep step, plan::Planner planner, std::optional<plan::Budget> budget,
          memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement = alone());
  Session(replay::RecordedStep step, std::string_view strategy, std::optional<plan::Budget> budget,
          memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement = alone());
  /// For steps none of which was recorded before, so that nothing runs twice. The first step of each kind runs without
  /// a plan, under the limit by eviction, and is recorded as it runs; those behind it follow the plan that is made then
  /// by `strategy`. Plans do not count optimizer state that is allocated outside of the steps. plan(), graph() and
  /// planner() throw UsageError before the first step is over.
  static Session without_sample(std::string_view strategy, plan::Budget budget, memory::DeviceMemory& memory,
                                std::shared_ptr<Agreement> agreement = alone(), std::vector<DeviceBudget> others = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Runs step(batch...), which returns the loss, and its backward pass; gradients are accumulated into .grad as
  /// usual. A step may call backward() itself, once for each forward pass (MicroBatch), and go on to clip, update and
  /// what else it likes. Returns the loss, detached (what such a step returned). Throws OutOfBudget when even eviction
  /// cannot make room, DoesNotFit when more is allocated outside of the step than when the plan was made and no plan
  /// fits any more (Error when that is so in another process of the group), and whatever the step throws; the session
  /// can be used again after each.
  template <class Step, class... Batch>
  at::Tensor backward(Step&& step, Batch&&... batch) {
    return run([&]() -> at::Tensor { return std::invoke(step, std::forward<Batch>(batch)...); });
  }

  /// Whether the next steps remember what they drop and compare it when it is made again. A replay that makes other
  /// bits throws Error out of backward(), naming the operator, its module and the place.
  void verify_replays(VerifyReplay how) noexcept;

  /// Where the contents go that plans move, and regions: of the next steps. As it is made, tiers without budgets.
  void use(std::shared_ptr<memory::Tiers> tiers) noexcept;
  [[nodiscard]] const memory::Tiers& tiers() const noexcept;

  /// Tensors that the next steps use and whose contents are not all in the device's memory: each step is expected to
  /// use them in the order of the last one, and gradients of those go where they are. They have a window already.
  void use(std::shared_ptr<StreamedTensors> streamed) noexcept;

  /// What the next steps ask the device's memory for lies in one range of it, at places that are chosen once two steps
  /// have asked alike, so that no free memory lies between where it is of no use. Throws UsageError for the CPU, where
  /// pages are moved.
  void use_arena();
  /// None without one.
  [[nodiscard]] std::optional<replay::StepArena::Stats> arena() const;

  /// Whether the step that was recorded, or without a sample the one that ran last, went backward itself. Then a step
  /// that returns nothing to go backward from has skipped its backward pass, as for a batch that is left out; else it
  /// is refused.
  [[nodiscard]] bool steps_go_backward() const;

  /// Plans of new steps are searched on another thread, while eviction holds the cap. Waits for those searches: the
  /// next steps follow what they find.
  void finish_searches();

  /// Of the next steps.
  void anomalies(Anomalies become) noexcept;

  /// Of the next steps. Those that keep all else run without a limit on the budget's device.
  void follow(Follow what) noexcept;

  /// Of the step that ran last, and was known or planned.
  [[nodiscard]] const plan::MemoryPlan& plan() const;
  [[nodiscard]] const plan::StepGraph& graph() const;
  /// Nullptr where the step came unexpectedly and fits with everything kept: no search was needed.
  [[nodiscard]] const plan::Planner* planner() const;
  /// The highest peak that a plan predicts, of all kinds of steps that it knows: of a whole run, whose last micro-batch
  /// may take more than its first or less, where plan() is of one of them. Those that no plan fits are left out.
  [[nodiscard]] Bytes predicted_peak() const;
  /// The highest that one of them that trains would have without a plan: budgets in percent are shares of it.
  [[nodiscard]] Bytes unplanned_peak() const;
  [[nodiscard]] const StepReport& last_step() const;
  /// What happened in it, one by one: what last_step() counts.
  [[nodiscard]] const replay::StepTrace& last_trace() const;

 private:
  class Step;
  struct State;
  explicit Session(std::unique_ptr<State> state);
  at::Tensor run(const replay::Forward& forward);
  std::unique_ptr<State> state_;
};

}  // namespace snug
