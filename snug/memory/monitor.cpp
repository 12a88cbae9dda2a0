#include "snug/memory/monitor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/timeline.h"

namespace snug::memory {
namespace {

constexpr std::size_t kLongestTimeline = 20'000;

double checked(double interval) {
  if (interval >= 0 && interval < 1e9) return interval;
  throw UsageError(
      fmt::format("monitor: an interval of {}; the interval between samples is in seconds, or 0 for none", interval));
}

}  // namespace

/// Writes lines and, at each interval, takes a sample.
class Monitor::Thread {
 public:
  Thread(DeviceMemory& memory, double began, const MonitorOptions& options)
      : memory_(memory), began_(began), interval_(checked(options.interval)) {
    if (!options.file.empty()) file_.emplace(options.file, options.existing);
    if (interval_ > 0) thread_ = std::thread([this] { run(); });
  }
  ~Thread() { stop(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  void write(std::string_view of, const nlohmann::ordered_json& value, const nlohmann::ordered_json& more) {
    const std::lock_guard lock(mutex_);
    write_locked(of, value, more);
  }

  [[nodiscard]] nlohmann::ordered_json line(const MemorySample& sample) const {
    nlohmann::ordered_json line = {{"seconds", sample.seconds - began_}};
    line.update(to_json(sample));
    return line;
  }

  /// Whether this process was forked from the one that it watches: locks may be held by threads that are not here.
  [[nodiscard]] bool is_parents() const { return ::getpid() != process_; }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void close() {
    if (is_parents()) return;
    stop();
    const std::lock_guard lock(mutex_);
    if (file_) {
      file_->close();
      file_.reset();
    }
    if (const auto failure = std::exchange(failure_, std::nullopt)) throw Error(*failure);
  }

  std::vector<std::pair<double, Bytes>> timeline() {
    const std::lock_guard lock(mutex_);
    return timeline_.points();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (std::int64_t count = 0;; ++count) {
      const bool last = ended_, writes = file_.has_value();
      // Nobody waits for files of the operating system.
      lock.unlock();
      const double seconds = monotonic_seconds() - began_;
      const Bytes allocated = memory_.stats().allocated;
      const nlohmann::ordered_json more = writes ? line(sample(memory_)) : nlohmann::ordered_json();
      lock.lock();
      timeline_.add(seconds, allocated);
      if (writes) write_locked("sample", count, more);
      if (last) return;
      wake_.wait_for(lock, std::chrono::duration<double>(interval_), [this] { return ended_; });
    }
  }

  void write_locked(std::string_view of, const nlohmann::ordered_json& value, const nlohmann::ordered_json& more) {
    if (!file_) return;
    nlohmann::ordered_json line = {{of, value}};
    line.update(more);
    try {
      file_->write(line);
    } catch (const Error& error) {
      failure_ = error.what();
      file_.reset();
    }
  }

  DeviceMemory& memory_;
  double began_, interval_;
  ::pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  Timeline timeline_{kLongestTimeline};
  std::optional<JsonLines> file_;
  std::optional<std::string> failure_;
  std::thread thread_;
};

Monitor::Monitor(const MonitorOptions& options)
    : memory_(device_memory(options.device)),
      began_(monotonic_seconds()),
      meter_(memory_.meter()),
      alarms_(options.alarms),
      thread_(std::make_unique<Thread>(memory_, began_, options)) {
  peak_ = in_step_ = meter_->take().allocated;
  step_peak_ = peak_;
}

Monitor::~Monitor() {
  if (!thread_->is_parents()) return;
  // The thread does not run here, and the locks and conditions are as it held them: nothing may wait for it.
  static_cast<void>(thread_.release());
  static_cast<void>(meter_.release());
}

void Monitor::look() {
  if (meter_ == nullptr || thread_->is_parents()) return;
  in_step_ = std::max(in_step_, meter_->take().allocated);
  peak_ = std::max(peak_, in_step_);
}

Bytes Monitor::peak() {
  look();
  return peak_;
}

std::vector<Alarm> Monitor::step(std::int64_t step, std::optional<double> loss_scale) {
  if (meter_ == nullptr) throw UsageError("monitor: step() after close(); make another one");
  if (thread_->is_parents())
    throw UsageError("monitor: step() in a process that was forked since it was made; make another one there");
  look();
  step_peak_ = std::exchange(in_step_, 0);
  const StepEnd end{.step = step, .memory = sample(memory_), .loss_scale = loss_scale};
  nlohmann::ordered_json line = thread_->line(end.memory);
  line["peak_bytes"] = step_peak_;
  if (loss_scale) line["loss_scale"] = *loss_scale;
  thread_->write("step", step, line);
  std::vector<Alarm> alarms = alarms_.after(end);
  for (const Alarm& alarm : alarms)
    thread_->write("alarm", name_of(alarm.kind), {{"at_step", step}, {"message", alarm.message}});
  return alarms;
}

std::vector<std::pair<double, Bytes>> Monitor::timeline() const {
  if (thread_->is_parents()) return {};
  return thread_->timeline();
}

void Monitor::close() {
  look();
  if (!thread_->is_parents()) meter_.reset();  // there are few
  thread_->close();
}

}  // namespace snug::memory
