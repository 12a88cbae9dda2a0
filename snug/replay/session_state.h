#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/tiers.h"
#include "snug/record/compared_replays.h"
#include "snug/replay/new_steps.h"
#include "snug/replay/session.h"
#include "snug/replay/step_arena.h"
#include "snug/replay/step_backward.h"
#include "snug/replay/step_book.h"
#include "snug/replay/streamed_tensors.h"
#include "snug/replay/weak_tensors.h"

namespace snug {

/// What a session has from step to step.
struct Session::State {
  State(memory::DeviceMemory& of_device, replay::StepBook its_book, std::optional<plan::Budget> its_budget,
        std::vector<DeviceBudget> other_budgets);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  /// Those that are not known yet.
  void add_parameters(const std::vector<at::Tensor>& found);

  memory::DeviceMemory& memory;
  replay::StepBook book;
  replay::WeakTensors parameters;  // a step may make leaves of its own between its passes
  replay::WeakTensors hooked;
  std::optional<plan::Budget> budget;
  std::unique_ptr<memory::HeldLimit> limit;
  std::vector<DeviceBudget> others;
  std::vector<std::unique_ptr<memory::HeldLimit>> other_limits;
  bool finds_parameters = false;  // in the steps that are recorded as they run
  replay::NewSteps new_steps{};
  /// What steps are expected to be like.
  struct Steps {
    replay::StepBackward backward{};
    int passes = 1;                 // one after the other, that have plans
    bool vary = false;              // an unknown step has come up
    bool in_micro_batches = false;  // the last step was, or the one that was recorded
  };
  Steps steps{};

  VerifyReplay verify = VerifyReplay::Once;
  std::shared_ptr<record::ComparedReplays> compared = std::make_shared<record::ComparedReplays>();
  Anomalies anomalies = Anomalies::Ignored;
  Follow follow = Follow::All;
  std::shared_ptr<memory::Tiers> tiers = std::make_shared<memory::Tiers>();
  std::shared_ptr<StreamedTensors> streamed{};
  std::shared_ptr<replay::StepArena> arena{};
  StepReport last;
  replay::StepTrace trace;
};

}  // namespace snug
