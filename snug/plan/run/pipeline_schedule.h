#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace snug::plan {

// In which order the stages of a pipeline go forward and backward with the micro-batches of a step. In all of them each
// stage goes backward with its micro-batches in their order, so that gradients are added up as without a pipeline.

/// All forward passes, then all backward passes (GPipe, Huang et al. 2019, arXiv:1811.06965).
struct FThenB {
  friend bool operator==(const FThenB&, const FThenB&) = default;
};
/// One backward pass behind each forward pass, as soon as there is one (PipeDream-Flush, Narayanan et al. 2021,
/// arXiv:2006.09503): as long, with fewer micro-batches under way.
struct OneFOneB {
  friend bool operator==(const OneFOneB&, const OneFOneB&) = default;
};
/// The same of several stages in each process, which are not neighbours (Narayanan et al. 2021, arXiv:2104.04473): idle
/// for a `chunks`th of the time. Micro-batches must be a multiple of the processes.
struct Interleaved {
  int chunks = 2;
  friend bool operator==(const Interleaved&, const Interleaved&) = default;
};
/// One forward and one backward pass, of which the gradients of weights come later, where a process would be idle
/// (ZB-H1, Qi et al. 2024, arXiv:2401.10241).
struct ZeroBubble {
  friend bool operator==(const ZeroBubble&, const ZeroBubble&) = default;
};
using PipelineSchedule = std::variant<FThenB, OneFOneB, Interleaved, ZeroBubble>;

/// "f_then_b", "1f1b", "interleaved(V)", "zero_bubble". Throws UsageError for other texts, with what there is.
PipelineSchedule pipeline_schedule_from(std::string_view text);
std::string name_of(const PipelineSchedule& schedule);

/// What a process does next.
struct PipelineAction {
  enum class Kind : std::uint8_t {
    Forward,
    Backward,        ///< with the gradients of inputs and weights
    BackwardInput,   ///< with those of inputs alone
    BackwardWeights  ///< the rest
  };
  Kind kind = Kind::Forward;
  int micro_batch = 0;
  int chunk = 0;  ///< of the process's stages: stage chunk * processes + rank
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

struct PipelineShape {
  int processes = 1;
  int micro_batches = 1;
};

/// By process. Throws UsageError for sizes that the schedule cannot have.
std::vector<std::vector<PipelineAction>> actions_of(const PipelineSchedule& schedule, const PipelineShape& shape);
[[nodiscard]] int chunks_of(const PipelineSchedule& schedule);

/// What a stage takes for one micro-batch: one of `chunks` stages of a process.
struct StageSeconds {
  double forward = 1;
  double backward_input = 1;
  double backward_weights = 1;
};

/// What becomes of a schedule when every action begins as soon as its process is free and what it needs is there.
struct PipelineRun {
  double seconds = 0;           ///< from the first action to the end of the last
  std::vector<double> busy;     ///< by process
  std::vector<int> most_alive;  ///< by process: micro-batches of stages whose activations are there at once
};
/// `seconds`: by stage, or one for all. `hand_over`: by stage, how long what it has made is on its way to the next one,
/// and from that back, which keeps neither busy; none: no time. Throws std::logic_error where processes would wait for
/// each other.
PipelineRun run_pipeline(const std::vector<std::vector<PipelineAction>>& actions,
                         const std::vector<StageSeconds>& seconds, const std::vector<double>& hand_over = {});

}  // namespace snug::plan
