// Profilers of one step whose tapes run by turns.
#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "snug/base/patient_lock.h"
#include "snug/record/profiler.h"
#include "snug/record/tape.h"

namespace snug::record {

Profiler::~Profiler() {
  if (turns_ == nullptr) return;
  std::erase(turns_->waiting_, this);
  const std::lock_guard lock(turns_->mutex_);
  if (turns_->now_ == this) turns_->now_ = nullptr;
}

Bytes Profiler::Turns::held(std::size_t device) {
  Bytes bytes = 0;
  for (Profiler* const profiler : waiting_) {
    const Tape& tape = *profiler->waits_->tape;
    const PatientLock lock(tape.mutex());
    profiler->poll(tape);
    bytes += profiler->gauges_[device].own();
    for (const plan::ValueId v : profiler->referred(tape)) {
      const plan::ValueInfo& value = profiler->info(v);
      if (static_cast<std::size_t>(value.device) == device) bytes -= value.bytes;
    }
  }
  return bytes;
}

std::vector<plan::ValueId> Profiler::referred(const Tape& tape) const {
  std::vector<plan::ValueId> values;
  for (const plan::ValueId v : alive_) {
    if (!tape.ledger().resident(v)) values.push_back(v);
  }
  return values;
}

void Profiler::let_go_of_referred() {
  const auto move_to = [&](auto& all, std::optional<std::size_t> from, std::size_t to, auto otherwise) {
    const auto begin = all.begin();
    if (!from) {
      all.insert(begin + static_cast<std::ptrdiff_t>(to), otherwise);
    } else {
      std::rotate(begin + static_cast<std::ptrdiff_t>(to), begin + static_cast<std::ptrdiff_t>(*from),
                  begin + static_cast<std::ptrdiff_t>(*from) + 1);
    }
  };
  for (const plan::ValueId v : referred_) {
    const std::size_t to = graph_.settle_event() + 1;
    std::optional<std::size_t> from;
    for (std::size_t i = to; i < graph_.events.size(); ++i) {
      if (graph_.events[i].kind == plan::Event::Kind::Die && graph_.events[i].id == v) from = i;
    }
    move_to(graph_.events, from, to, plan::Event{.kind = plan::Event::Kind::Die, .id = v});
    for (plan::DevicePart& part : graph_.parts) move_to(part.events, from, to, MemoryGauge::Taken{});
  }
}

void Profiler::Turns::evicted(const memory::DeviceMemory& memory, Bytes bytes) {
  const std::lock_guard lock(mutex_);
  evicted_.emplace_back(&memory, bytes);
  if (now_ == nullptr) return;
  for (MemoryGauge& gauge : now_->gauges_) {
    if (&gauge.memory() == &memory) gauge.keep_of_others(bytes);
  }
}

void Profiler::wait(const Tape& tape) {
  if (waits_ || turns_ == nullptr || !begun_) return;
  const PatientLock lock(tape.mutex());
  poll(tape);
  mark();
  // Its forward pass is over, and not its backward pass, too.
  if (std::ranges::find(graph_.events, plan::Event::Kind::Unpack, &plan::Event::kind) == graph_.events.end())
    referred_ = referred(tape);
  for (MemoryGauge& gauge : gauges_) gauge.leave();
  waits_ = Waits{&tape, clocks_.front().now()};
  turns_->waiting_.push_back(this);
  const std::lock_guard turn(turns_->mutex_);
  if (turns_->now_ == this) turns_->now_ = nullptr;
}

void Profiler::go_on() {
  if (!waits_) return;
  const PatientLock lock(waits_->tape->mutex());
  poll(*waits_->tape);
  for (MemoryGauge& gauge : gauges_) gauge.enter();
  waited();
  begin_turn();
}

Profiler* Profiler::one_in_turn() const {
  if (!waits_) return nullptr;
  const std::lock_guard lock(turns_->mutex_);
  return turns_->now_;
}

void Profiler::begin_turn() {
  const std::lock_guard lock(turns_->mutex_);
  turns_->now_ = this;
  turns_->evicted_.clear();  // before, when nobody counted
}

void Profiler::waited() {
  clocks_.front().leave_out(waits_->since, clocks_.front().now());
  waits_.reset();
  std::erase(turns_->waiting_, this);
}

void Profiler::count_evicted_of_others() {
  if (turns_ == nullptr || turns_->now_ != this) return;
  const std::lock_guard lock(turns_->mutex_);
  for (const auto& [memory, bytes] : std::exchange(turns_->evicted_, {})) {
    for (MemoryGauge& gauge : gauges_) {
      if (&gauge.memory() == memory) gauge.evicted_of_others(bytes);
    }
  }
}

void Profiler::look_at_others() {
  if (turns_ == nullptr || turns_->now_ != this) return;
  for (Profiler* const other : turns_->waiting_) {
    const PatientLock lock(other->waits_->tape->mutex());
    std::vector<Bytes> before;
    for (const MemoryGauge& gauge : other->gauges_) before.push_back(gauge.own());
    other->poll(*other->waits_->tape);
    for (std::size_t i = 0; i < gauges_.size(); ++i) gauges_[i].died_of_others(before[i] - other->gauges_[i].own());
  }
}

}  // namespace snug::record
