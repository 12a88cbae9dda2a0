#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/json_lines.h"
#include "snug/memory/monitor.h"
#include "snug/report/progress.h"
#include "snug/train/sink.h"

namespace snug::train {

/// The display on a terminal, which must outlive it.
class ProgressSink final : public Sink {
 public:
  explicit ProgressSink(report::Progress& progress) : progress_(progress) {}
  void step_over(const StepRecord& record) override;
  void steps_end() override;

 private:
  report::Progress& progress_;
};

/// metrics.jsonl: the configuration, a line for each step and each validation, the result. A failure is noted on the
/// display, nothing more is written, and ends() throws it.
class MetricsSink final : public Sink {
 public:
  MetricsSink(const std::filesystem::path& file, JsonLines::Existing existing, report::Progress& progress);
  void begins(const Config& config, std::int64_t parameters) override;
  void step(const StepRecord& record) override;
  void validated(std::int64_t steps, double loss) override;
  void ends(const TrainResult& result) override;

 private:
  void write(const nlohmann::ordered_json& line);

  std::optional<JsonLines> writer_;
  std::optional<std::string> failure_;
  report::Progress& progress_;
};

/// Watches memory: what is wrong is noted on the display, and the run's folder, where there is one, has what it took at
/// each step (memory.jsonl).
class MonitorSink final : public Sink {
 public:
  MonitorSink(const memory::MonitorOptions& options, report::Progress& progress)
      : monitor_(options), progress_(progress) {}
  void step_over(const StepRecord& record) override;
  void ends(const TrainResult& result) override;

 private:
  memory::Monitor monitor_;
  report::Progress& progress_;
};

/// What a TrainResult says of the steps; it must outlive this, and has the figures when the steps have ended.
class SummarySink final : public Sink {
 public:
  SummarySink(TrainResult& result, std::int64_t tokens_per_step) : result_(result), tokens_per_step_(tokens_per_step) {}
  void validated(std::int64_t steps, double loss) override;
  void step_over(const StepRecord& record) override;
  void steps_end() override;

 private:
  TrainResult& result_;
  std::int64_t tokens_per_step_;
  std::vector<double> seconds_;
};

}  // namespace snug::train
