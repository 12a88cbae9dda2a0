#include "snug/train/train_result.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "snug/memory/tag.h"

namespace snug::train {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

nlohmann::ordered_json plan_figures(const plan::MemoryPlan& plan, const StepPeaks& peaks, const memory::Stats& memory) {
  return {{"strategy", plan.strategy},
          {"budget_bytes", plan.budget > 0 ? nlohmann::ordered_json(plan.budget) : nlohmann::ordered_json()},
          {"predicted_peak_bytes", peaks.predicted},
          {"measured_peak_bytes", memory.allocated_peak},
          {"mapped_peak_bytes", memory.mapped_peak},
          {"unplanned_peak_bytes", peaks.unplanned}};
}

nlohmann::ordered_json to_json(const TrainResult& r) {
  nlohmann::ordered_json by_tag;
  for (std::size_t i = 0; i < memory::kTags; ++i)
    by_tag[std::string(memory::kTagNames[i])] = r.memory.at_peak_by_tag[i];
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json json = {{"steps", r.steps},
                                 {"parameters", r.parameters},
                                 {"trained_parameters", r.trained_parameters},
                                 {"tokens_per_second", r.tokens_per_second},
                                 {"step_seconds_median", r.step_seconds_median},
                                 {"loss_first", r.loss_first},
                                 {"loss_last", r.loss_last},
                                 {"validation_loss", or_null(r.validation_loss)},
                                 {"peak_by_tag", by_tag},
                                 {"recording_peak_bytes", r.recording_peak},
                                 {"resident_start_bytes", r.resident.start},
                                 {"resident_peak_bytes", r.resident.peak},
                                 {"replayed_ops", r.replayed_ops},
                                 {"evictions", r.evictions},
                                 {"skipped_steps", r.scaled.skipped_steps},
                                 {"loss_scale", or_null(r.scaled.loss_scale)},
                                 {"interrupted", r.interrupted},
                                 {"resumed_from", r.resumed_from},
                                 {"states_saved", r.states_saved},
                                 {"state_copy_bytes", r.peaks.copies}};
  json.update(plan_figures(r.plan, r.peaks, r.memory));
  if (r.arena) {
    json["arena"] = {{"bytes", r.arena->bytes},
                     {"highest_bytes", r.arena->highest},
                     {"placed", r.arena->placed},
                     {"elsewhere", r.arena->elsewhere}};
  }
  return json;
}

}  // namespace snug::train
