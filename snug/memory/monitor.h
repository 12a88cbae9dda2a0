#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/json_lines.h"
#include "snug/memory/alarms.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/memory_sample.h"

namespace snug::memory {

struct MonitorOptions {
  c10::Device device = c10::kCPU;
  double interval = 0;  ///< seconds between the samples of a thread; 0: none, memory is seen where steps end
  std::filesystem::path file = {};  ///< of JSON lines; empty: none
  JsonLines::Existing existing = JsonLines::Existing::Replace;
  AlarmRules alarms = {};
};

/// What memory a training loop takes, from its making on:
///
///   snug::Monitor monitor({.interval = 0.1, .file = "runs/mine/memory.jsonl"});
///   for (...) { ...; for (const auto& alarm : monitor.step(i)) std::cerr << alarm.message << '\n'; }
///
/// A line of the file is a step's end ({"step": ...}), a sample ({"sample": ...}, its number), or an alarm ({"alarm":
/// ...}); the first two have the seconds since the beginning and what MemorySample has, steps their own peak besides.
/// A file that cannot be written to ends the lines and nothing else: see close(). One thread, beside its own.
class Monitor {
 public:
  explicit Monitor(const MonitorOptions& options = {});
  /// As close(), without a word.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// A step has ended. `loss_scale`: that of the next one, where losses are scaled. Returns what is wrong, each thing
  /// once for as long as it lasts. Throws UsageError after close(), and in a process that was forked meanwhile.
  std::vector<Alarm> step(std::int64_t step, std::optional<double> loss_scale = {});

  /// The highest `allocated` since the beginning, until now or its close, and that of the last step.
  [[nodiscard]] Bytes peak();
  [[nodiscard]] Bytes step_peak() const { return step_peak_; }

  /// (seconds since the beginning, bytes allocated), of its thread: at most 20,000, of which every other one goes when
  /// there are more, so that those of a long run lie further apart. Empty in a process that was forked meanwhile.
  [[nodiscard]] std::vector<std::pair<double, Bytes>> timeline() const;

  /// Ends its thread, its measuring and the file. Throws Error for what could not be written. A second call does
  /// nothing, and neither does one in a process that was forked meanwhile.
  void close();

 private:
  class Thread;
  void look();

  DeviceMemory& memory_;
  double began_;
  std::unique_ptr<Meter> meter_;
  Alarms alarms_;
  Bytes peak_ = 0, step_peak_ = 0;
  Bytes in_step_ = 0;  // the highest since the last step's end
  std::unique_ptr<Thread> thread_;
};

}  // namespace snug::memory

namespace snug {
using memory::AlarmRules, memory::Monitor, memory::MonitorOptions;
}
