#include "snug/train/longest_sequence.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/tag.h"
#include "snug/models/autocast.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/replay/planned_step.h"
#include "snug/train/training_step.h"

namespace snug::train {
namespace {

/// Long enough that what does not grow with the sequence is there in full, in half of it too.
constexpr std::int64_t kProbe = 512;
constexpr double kShorter = 0.95;

data::Batch random_batch(const Experiment& experiment, std::int64_t tokens) {
  const memory::TagScope tag(memory::Tag::Staging);
  const auto draw = [&] {
    return at::randint(0, experiment.language_model().vocabulary(), {experiment.config().train.batch, tokens},
                       at::TensorOptions().dtype(at::kLong));
  };
  data::Batch batch{draw(), draw()};
  if (experiment.config().data.packing == Packing::Documents) {  // one in each row, for the memory of the mask
    batch.positions = at::arange(tokens, at::kLong).expand_as(batch.input).contiguous();
    batch.documents = at::zeros_like(batch.input);
  }
  return batch;
}

std::int64_t rounded_down(double value, std::int64_t multiple) {
  return std::max(static_cast<std::int64_t>(value) / multiple * multiple, multiple);
}

}  // namespace

LongestSequence longest_sequence(Experiment& experiment, Bytes budget, report::Progress& progress,
                                 std::int64_t multiple) {
  TrainingStep step(experiment);
  const auto recorded = [&](const data::Batch& batch) {
    return replay::planned(step.record(batch, budget), "optimal");
  };
  LongestSequence found;
  found.made_for = experiment.language_model().longest();
  multiple = std::min(multiple, found.made_for);
  std::array<std::int64_t, 2> lengths{};
  std::array<Bytes, 2> floors{};
  for (lengths[1] = std::min(kProbe, found.made_for);; lengths[1] /= 2) {
    lengths[0] = std::max<std::int64_t>(lengths[1] / 2, 1);
    try {
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        floors[i] = replay::smallest_budget(recorded(random_batch(experiment, lengths[i])));
        progress.note(fmt::format("a sequence of {} takes {} at the least", lengths[i], format_bytes(floors[i])));
      }
      break;
    } catch (const DoesNotFit&) {
      if (lengths[1] <= 2) throw;
    } catch (const OutOfBudget&) {
      if (lengths[1] <= 2) throw;
    }
  }
  const double apart = static_cast<double>(std::max<std::int64_t>(lengths[1] - lengths[0], 1));
  found.bytes_per_token = static_cast<double>(std::max<Bytes>(floors[1] - floors[0], 1)) / apart;
  found.fixed = floors[0] - static_cast<Bytes>(found.bytes_per_token * static_cast<double>(lengths[0]));
  found.by_memory = rounded_down(static_cast<double>(budget - found.fixed) / found.bytes_per_token, multiple);

  for (std::int64_t tokens = rounded_down(static_cast<double>(std::min(found.by_memory, found.made_for)), multiple);;
       tokens = rounded_down(kShorter * static_cast<double>(tokens), multiple)) {
    const data::Batch batch = random_batch(experiment, tokens);
    progress.note(fmt::format("trying a sequence of {}", tokens));
    auto& memory = memory::device_memory(c10::kCPU);
    try {
      std::vector<replay::PlannedStep> kinds = recorded(batch);
      found.unplanned_peak = plan::plan_none(kinds.front().step.graph).predicted_peak;
      Session session(std::move(kinds), plan::Budget::for_limit(budget), memory);
      found.predicted_peak = session.plan().predicted_peak;
      memory.reset_peak();
      const double started = monotonic_seconds();
      step.backward(session, batch, 0);
      found.step_seconds = monotonic_seconds() - started;
      found.measured_peak = memory.stats().allocated_peak;
      step.forget_gradients();
      found.tokens = tokens;
      return found;
    } catch (const DoesNotFit&) {
      if (tokens <= multiple) throw;
    } catch (const OutOfBudget&) {
      if (tokens <= multiple) throw;
    }
    step.forget_gradients();  // what a step that failed has left
  }
}

}  // namespace snug::train
