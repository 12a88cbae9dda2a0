#include "snug/plan/run/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <limits>
#include <stdexcept>

#include "snug/base/errors.h"
#include "snug/base/match.h"

namespace snug::plan {
namespace {

using Kind = PipelineAction::Kind;
using Actions = std::vector<PipelineAction>;

constexpr const char* kInterleaved = "interleaved(";

void check(const PipelineSchedule& schedule, const PipelineShape& shape) {
  if (shape.processes < 1 || shape.micro_batches < 1) {
    throw UsageError(fmt::format("pipeline: {} processes and {} micro-batches; there must be one of each or more",
                                 shape.processes, shape.micro_batches));
  }
  const auto* const interleaved = std::get_if<Interleaved>(&schedule);
  if (interleaved == nullptr) return;
  if (interleaved->chunks < 1)
    throw UsageError(
        fmt::format("pipeline: {} stages in each process; there must be one or more", interleaved->chunks));
  if (shape.micro_batches % shape.processes != 0) {
    throw UsageError(fmt::format("pipeline: {} micro-batches are no multiple of {} processes, as {} needs them",
                                 shape.micro_batches, shape.processes, name_of(schedule)));
  }
}

Actions all_forward_first(int micro_batches) {
  Actions all;
  for (int m = 0; m < micro_batches; ++m) all.push_back({Kind::Forward, m});
  for (int m = 0; m < micro_batches; ++m) all.push_back({Kind::Backward, m});
  return all;
}

/// Forward `ahead` times, then by turns, then what is left: `forward(i)` and `backward(i)` of `count` each.
template <class Forward, class Backward>
Actions by_turns(int count, int ahead, const Forward& forward, const Backward& backward) {
  Actions all;
  const int first = std::min(ahead, count);
  for (int i = 0; i < first; ++i) all.push_back(forward(i));
  for (int i = first; i < count; ++i) {
    all.push_back(forward(i));
    all.push_back(backward(i - first));
  }
  for (int i = count - first; i < count; ++i) all.push_back(backward(i));
  return all;
}

Actions one_forward_one_backward(const PipelineShape& shape, int rank) {
  return by_turns(
      shape.micro_batches, shape.processes - rank - 1,
      [](int m) {
        return PipelineAction{Kind::Forward, m};
      },
      [](int m) {
        return PipelineAction{Kind::Backward, m};
      });
}

/// As many micro-batches as there are processes go through a chunk before they go through the next one.
Actions interleaved(const PipelineShape& shape, int rank, int chunks) {
  const int group = shape.processes * chunks;
  const auto action = [&](Kind kind, int i) {
    const int chunk = i % group / shape.processes;
    return PipelineAction{kind, i / group * shape.processes + i % shape.processes,
                          kind == Kind::Forward ? chunk : chunks - 1 - chunk};
  };
  const int ahead = 2 * (shape.processes - rank - 1) + (chunks - 1) * shape.processes;
  return by_turns(
      shape.micro_batches * chunks, ahead, [&](int i) { return action(Kind::Forward, i); },
      [&](int i) { return action(Kind::Backward, i); });
}

/// As 1F1B, where later processes, which would be idle at the end, put off the gradients of weights: as many of them
/// that all have as many activations.
Actions zero_bubble(const PipelineShape& shape, int rank) {
  Actions all;
  int behind = 0, done = 0;  // backward passes without those of weights, and all
  const auto weights = [&] {
    all.push_back({Kind::BackwardWeights, done++});
    --behind;
  };
  for (const PipelineAction& action : one_forward_one_backward(shape, rank)) {
    if (action.kind == Kind::Forward) {
      all.push_back(action);
      continue;
    }
    all.push_back({Kind::BackwardInput, action.micro_batch});
    if (++behind > rank) weights();
  }
  while (behind > 0) weights();
  return all;
}

/// When what an action needs has been made, or infinity; by stage and micro-batch.
class Clock {
 public:
  Clock(int stages, int micro_batches, const std::vector<double>& hand_over)
      : stages_(stages),
        micro_batches_(micro_batches),
        hand_over_(hand_over),
        forward_(static_cast<std::size_t>(stages) * static_cast<std::size_t>(micro_batches), kNever),
        backward_(forward_) {}

  [[nodiscard]] double ready(Kind kind, int stage, int m) const {
    if (kind == Kind::Forward) return stage == 0 ? 0 : forward_[at(stage - 1, m)] + behind(stage - 1);
    if (kind == Kind::BackwardWeights) return backward_[at(stage, m)];
    return std::max(forward_[at(stage, m)], stage == stages_ - 1 ? 0 : backward_[at(stage + 1, m)] + behind(stage));
  }
  void made(Kind kind, int stage, int m, double when) {
    if (kind == Kind::Forward) forward_[at(stage, m)] = when;
    if (kind == Kind::Backward || kind == Kind::BackwardInput) backward_[at(stage, m)] = when;
  }
  static constexpr double kNever = std::numeric_limits<double>::infinity();

 private:
  [[nodiscard]] double behind(int stage) const {
    return hand_over_.empty() ? 0 : hand_over_.at(static_cast<std::size_t>(stage));
  }
  [[nodiscard]] std::size_t at(int stage, int m) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(micro_batches_) + static_cast<std::size_t>(m);
  }
  int stages_, micro_batches_;
  const std::vector<double>& hand_over_;
  std::vector<double> forward_, backward_;
};

double seconds_of(Kind kind, const StageSeconds& stage) {
  switch (kind) {
    case Kind::Forward:
      return stage.forward;
    case Kind::Backward:
      return stage.backward_input + stage.backward_weights;
    case Kind::BackwardInput:
      return stage.backward_input;
    case Kind::BackwardWeights:
      return stage.backward_weights;
  }
  throw std::logic_error("pipeline: unknown action");
}

}  // namespace

PipelineSchedule pipeline_schedule_from(std::string_view text) {
  if (text == "f_then_b") return FThenB{};
  if (text == "1f1b") return OneFOneB{};
  if (text == "zero_bubble") return ZeroBubble{};
  if (text.starts_with(kInterleaved) && text.ends_with(')')) {
    const std::string_view number =
        text.substr(std::string_view(kInterleaved).size(), text.size() - std::string_view(kInterleaved).size() - 1);
    int chunks = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), chunks);
    if (error == std::errc() && end == number.data() + number.size() && chunks > 0) return Interleaved{chunks};
  }
  throw UsageError(fmt::format(
      "pipeline: unknown schedule \"{}\"; it must be one of f_then_b, 1f1b, interleaved(STAGES), zero_bubble", text));
}

std::string name_of(const PipelineSchedule& schedule) {
  return std::visit(
      Match{[](const FThenB&) { return std::string("f_then_b"); }, [](const OneFOneB&) { return std::string("1f1b"); },
            [](const Interleaved& i) { return fmt::format("{}{})", kInterleaved, i.chunks); },
            [](const ZeroBubble&) { return std::string("zero_bubble"); }},
      schedule);
}

int chunks_of(const PipelineSchedule& schedule) {
  const auto* const interleaved = std::get_if<Interleaved>(&schedule);
  return interleaved != nullptr ? interleaved->chunks : 1;
}

std::vector<std::vector<PipelineAction>> actions_of(const PipelineSchedule& schedule, const PipelineShape& shape) {
  check(schedule, shape);
  std::vector<Actions> all;
  for (int rank = 0; rank < shape.processes; ++rank) {
    all.push_back(std::visit(Match{[&](const FThenB&) { return all_forward_first(shape.micro_batches); },
                                   [&](const OneFOneB&) { return one_forward_one_backward(shape, rank); },
                                   [&](const Interleaved& i) { return interleaved(shape, rank, i.chunks); },
                                   [&](const ZeroBubble&) { return zero_bubble(shape, rank); }},
                             schedule));
  }
  return all;
}

PipelineRun run_pipeline(const std::vector<std::vector<PipelineAction>>& actions,
                         const std::vector<StageSeconds>& seconds, const std::vector<double>& hand_over) {
  const int processes = static_cast<int>(actions.size());
  int stages = processes, micro_batches = 1;
  for (const Actions& of_one : actions) {
    for (const PipelineAction& action : of_one) {
      stages = std::max(stages, (action.chunk + 1) * processes);
      micro_batches = std::max(micro_batches, action.micro_batch + 1);
    }
  }
  Clock clock(stages, micro_batches, hand_over);
  PipelineRun run{
      .seconds = 0, .busy = std::vector<double>(actions.size(), 0), .most_alive = std::vector<int>(actions.size(), 0)};
  std::vector<double> free(actions.size(), 0);
  std::vector<int> alive(actions.size(), 0);
  std::vector<std::size_t> next(actions.size(), 0);
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::size_t rank = 0; rank < actions.size(); ++rank) {
      for (; next[rank] < actions[rank].size(); ++next[rank]) {
        const auto& [kind, m, chunk] = actions[rank][next[rank]];
        const int stage = chunk * processes + static_cast<int>(rank);
        const double ready = clock.ready(kind, stage, m);
        if (ready == Clock::kNever) break;
        const double took =
            seconds_of(kind, seconds.size() == 1 ? seconds.front() : seconds.at(static_cast<std::size_t>(stage)));
        free[rank] = std::max(free[rank], ready) + took;
        run.busy[rank] += took;
        clock.made(kind, stage, m, free[rank]);
        if (kind == Kind::Forward) run.most_alive[rank] = std::max(run.most_alive[rank], ++alive[rank]);
        if (kind == Kind::Backward || kind == Kind::BackwardWeights) --alive[rank];
        goes_on = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < actions.size(); ++rank) {
    if (next[rank] < actions[rank].size()) throw std::logic_error("pipeline: processes wait for each other");
    run.seconds = std::max(run.seconds, free[rank]);
  }
  return run;
}

}  // namespace snug::plan
