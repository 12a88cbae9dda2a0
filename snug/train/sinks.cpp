#include "snug/train/sinks.h"

#include <nlohmann/json.hpp>

#include "snug/base/errors.h"
#include "snug/train/config.h"

namespace snug::train {

void ProgressSink::step_over(const StepRecord& record) {
  report::StepStatus status;
  status.step = record.step;
  status.steps = record.steps;
  status.loss = record.loss;
  status.tokens_per_second = record.tokens_per_second;
  status.peak = record.peak;
  status.budget = record.budget;
  status.seconds = record.run_seconds;
  status.validation_loss = record.validation_loss;
  progress_.update(status);
}

void ProgressSink::steps_end() { progress_.finish(); }

MetricsSink::MetricsSink(const std::filesystem::path& file, JsonLines::Existing existing, report::Progress& progress)
    : progress_(progress) {
  writer_.emplace(file, existing);
}

void MetricsSink::write(const nlohmann::ordered_json& line) {
  if (!writer_) return;
  try {
    writer_->write(line);
  } catch (const Error& error) {
    progress_.note(error.what());
    failure_ = error.what();
    writer_.reset();
  }
}

void MetricsSink::begins(const Config& config, std::int64_t parameters) {
  write({{"config", to_json(config)}, {"parameters", parameters}});
}

void MetricsSink::step(const StepRecord& record) {
  nlohmann::ordered_json line = {{"step", record.step},
                                 {"tokens", record.tokens},
                                 {"epoch", record.epoch},
                                 {"learning_rate", record.learning_rate},
                                 {"loss", record.loss},
                                 {"gradient_norm", record.gradient_norm},
                                 {"step_seconds", record.seconds},
                                 {"tokens_per_second", record.tokens_per_second},
                                 {"peak_bytes", record.peak},
                                 {"replayed_ops", record.replayed_ops},
                                 {"lossy_bytes", record.lossy_bytes},
                                 {"evictions", record.evictions}};
  if (record.loss_scale) {
    line["loss_scale"] = *record.loss_scale;
    line["overflowed"] = record.overflowed;
  }
  write(line);
}

void MetricsSink::validated(std::int64_t steps, double loss) {
  write({{"validation", {{"step", steps}, {"loss", loss}}}});
}

void MetricsSink::ends(const TrainResult& result) {
  write({{"result", to_json(result)}});
  if (writer_) writer_->close();
  if (failure_) throw Error(*failure_);
}

void MonitorSink::step_over(const StepRecord& record) {
  for (const memory::Alarm& alarm : monitor_.step(record.step, record.next_loss_scale)) progress_.note(alarm.message);
}

void MonitorSink::ends(const TrainResult& /*result*/) { monitor_.close(); }

void SummarySink::validated(std::int64_t /*steps*/, double loss) { result_.validation_loss = loss; }

void SummarySink::step_over(const StepRecord& record) {
  seconds_.push_back(record.seconds);
  result_.replayed_ops = record.replayed_ops;
  result_.evictions += record.evictions;
}

void SummarySink::steps_end() {
  result_.step_seconds_median = median(seconds_);
  if (result_.step_seconds_median > 0)
    result_.tokens_per_second = static_cast<double>(tokens_per_step_) / result_.step_seconds_median;
}

}  // namespace snug::train
