#include "snug/replay/region.h"

#include <c10/core/GradMode.h>

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "snug/base/hash.h"
#include "snug/base/patient_lock.h"
#include "snug/memory/device_memory.h"
#include "snug/record/compared_replays.h"
#include "snug/record/recording.h"
#include "snug/replay/anomaly.h"
#include "snug/replay/opaque_values.h"
#include "snug/replay/rerun_frame.h"
#include "snug/replay/saved_tensor_hooks.h"
#include "snug/replay/step_run.h"

namespace snug {

struct Region::State {
  std::shared_ptr<record::Tape> tape;
  bool closed = false;
  std::optional<record::PythonHooksOutside> hooks;
  std::optional<record::Recording> recording;  // only of the outermost region outside a session
};

namespace {

/// What a tape makes of an action.
record::RegionTerms terms_of(const Keep&) { return {}; }
record::RegionTerms terms_of(const Recompute&) { return {.recompute = true}; }
record::RegionTerms terms_of(const Offload& offload) {
  return {.policy = [](const OperatorContext&) { return Choice::Offload; }, .min_offload = offload.min_bytes};
}
record::RegionTerms terms_of(const Selective& selective) {
  return {.recompute = true, .policy = record::policy_of(selective)};
}
record::RegionTerms terms_of(const SelectivePolicy& policy) { return {.recompute = true, .policy = policy}; }

std::uint64_t hash_of(const std::source_location& where) {
  const std::string text = fmt::format("{}:{}:{}", where.file_name(), where.line(), where.column());
  return hash_64(std::as_bytes(std::span(text)));
}

/// Comparing waits for the device, so not each region has a value compared again.
void compare_once(record::Tape& tape, std::uint64_t place) {
  constexpr std::uint64_t kRegionsPerValue = 32;
  static std::atomic<std::uint64_t> regions = 0;
  const auto& compared = record::ComparedReplays::of_this_process();
  if (++regions % kRegionsPerValue == 0) compared->forget_oldest();
  tape.verify_replays_once(compared, place);
}

}  // namespace

Region::Region(RegionAction action, RegionOptions options, std::source_location where)
    : state_(std::make_unique<State>()) {
  if (!c10::GradMode::is_enabled()) return;
  replay::require_saved_tensor_hooks();
  if (replay::StepRun* const step = replay::StepRun::here()) step->region_begins();
  // Inside a rerun checkpoint, which saves what a tape around it would, a region begins a tape of its own.
  if (!replay::innermost_rerun_frame()) state_->tape = record::recording_tape();
  if (!state_->tape) {
    state_->tape = std::make_shared<record::Tape>(record::KeepSaved{});
    state_->recording.emplace(state_->tape);
  }
  state_->hooks.emplace();
  if (options.verify_replay == VerifyReplay::Once) {
    const std::uint64_t place = options.place != 0 ? options.place : hash_of(where);
    if (state_->recording) compare_once(*state_->tape, place);
  } else if (options.verify_replay != VerifyReplay::Off) {
    state_->tape->verify_replays(options.verify_replay);
  }
  if (options.detect_anomalies) replay::watch_operators(*state_->tape);
  state_->tape->open_region(std::visit([](const auto& a) { return terms_of(a); }, action));
}

Region::~Region() { close(); }

void Region::close() {
  if (!state_->tape || std::exchange(state_->closed, true)) return;
  state_->tape->close_region();
  state_->hooks.reset();
  if (!state_->recording) return;
  state_->recording.reset();
  state_->tape->finish();
}

std::vector<std::string> Region::opaque_values() const {
  if (!state_->tape) return {};
  const PatientLock lock(state_->tape->mutex());
  return replay::opaque_lines(*state_->tape);
}

record::SavedCounts Region::saved_tensors() const {
  return state_->tape ? state_->tape->saved_counts() : record::SavedCounts();
}

Bytes Region::offloaded_bytes() const {
  if (!state_->tape) return 0;
  const PatientLock lock(state_->tape->mutex());
  return state_->tape->values().offloaded_bytes();
}

std::int64_t Region::replayed_ops() const {
  if (!state_->tape) return 0;
  const PatientLock lock(state_->tape->mutex());
  return state_->tape->replayed_ops();
}

}  // namespace snug
