#include "snug/record/profiler.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "snug/base/patient_lock.h"
#include "snug/memory/tag.h"
#include "snug/record/seconds_again.h"
#include "snug/record/tape.h"

namespace snug::record {

using plan::Event;

namespace {

/// The calling thread's current stream.
std::int64_t stream_on(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id(); }

}  // namespace

Profiler::Profiler(std::vector<MemoryGauge> devices, plan::Codec lossy)
    : gauges_(std::move(devices)),
      encodings_(gauges_.front().memory(), lossy),
      kernel_(gauges_.size()),
      state_to_come_(gauges_.size(), 0) {
  graph_.lossy = lossy;
  graph_.devices.clear();
  for (const MemoryGauge& gauge : gauges_) {
    clocks_.emplace_back(gauge.memory().device());
    graph_.devices.push_back(gauge.memory().device().str());
  }
  graph_.parts.resize(gauges_.size() - 1);
}

void Profiler::begin() {
  begun_ = true;
  if (turns_ != nullptr) begin_turn();
  const memory::Stats stats = gauges_.front().begin();
  graph_.static_bytes = stats.allocated;
  graph_.static_by_tag = stats.by_tag;
  for (std::size_t i = 0; i < graph_.parts.size(); ++i) {
    plan::DevicePart& part = graph_.parts[i];
    const memory::Stats there = gauges_[i + 1].begin();
    part.device = static_cast<std::int32_t>(i) + 1;
    part.static_bytes = there.allocated;
    part.static_by_tag = there.by_tag;
  }
}

void Profiler::push(Event::Kind kind, std::int32_t id, const std::vector<MemoryGauge::Taken>& taken) {
  const auto of_device = [&](std::size_t device) {
    return device < taken.size() ? taken[device] : MemoryGauge::Taken{};
  };
  const auto [peak, net] = of_device(0);
  graph_.events.push_back({kind, id, peak, net, 0});
  for (std::size_t i = 0; i < graph_.parts.size(); ++i) graph_.parts[i].events.push_back(of_device(i + 1));
  pushed_.push_back(clocks_.front().now());
}

std::int32_t Profiler::device_index(c10::Device device) {
  const std::string name = device.str();
  const auto known = std::ranges::find(graph_.devices, name);
  const auto index = static_cast<std::int32_t>(known - graph_.devices.begin());
  if (known == graph_.devices.end()) graph_.devices.push_back(name);
  return index;
}

MemoryGauge* Profiler::gauge_of(plan::ValueId value) {
  const auto device = static_cast<std::size_t>(info(value).device);
  return device < gauges_.size() ? &gauges_[device] : nullptr;
}

void Profiler::died(plan::ValueId value) {
  if (MemoryGauge* gauge = gauge_of(value)) gauge->died(info(value).bytes);
}

void Profiler::mark() {
  if (!begun_) return begin();
  if (waits_) return;
  count_evicted_of_others();
  std::vector<MemoryGauge::Taken> taken;
  bool any = false;
  for (MemoryGauge& gauge : gauges_) {
    taken.push_back(gauge.take());
    any = any || taken.back().peak != 0 || taken.back().net != 0;
  }
  if (any) push(Event::Kind::Other, -1, taken);
}

void Profiler::poll(const Tape& tape) {
  std::erase_if(alive_, [&](plan::ValueId v) {
    const ValueStore& values = tape.values();
    if (!values.program_let_go(v)) return false;
    push(Event::Kind::Die, v);
    // A value that the tape does not hold is already free: its Die event stands for that.
    if (!tape.ledger().resident(v)) died(v);
    return true;
  });
}

void Profiler::op_begins(const Tape& tape) {
  look_at_others();
  poll(tape);
  mark();
}

void Profiler::reads(const at::Tensor& argument) {
  if (argument.requires_grad() && argument.is_leaf() && noted_.insert(argument.unsafeGetTensorImpl()).second)
    leaves_.emplace_back(argument.getIntrusivePtr());
}

std::vector<at::Tensor> Profiler::leaves() const {
  std::vector<at::Tensor> alive;
  for (const auto& leaf : leaves_) {
    if (auto tensor = leaf.lock()) alive.emplace_back(std::move(tensor));
  }
  return alive;
}

void Profiler::kernel_begins() {
  (void)take_seconds_again();
  for (std::size_t i = 0; i < clocks_.size(); ++i) kernel_[i].from = clocks_[i].now();
}
void Profiler::kernel_ends() {
  for (std::size_t i = 0; i < clocks_.size(); ++i) kernel_[i].to = clocks_[i].now();
}

void Profiler::op_not_recorded() { mark(); }

void Profiler::op_recorded(const Tape& tape, plan::OpId op) {
  const CallLog& calls = tape.calls();
  const ValueStore& values = tape.values();
  plan::OpInfo info;
  info.name = calls.call(op).traits->name;
  info.inputs = calls.inputs_of(calls.call(op));
  info.signature = calls.signature(op);
  info.module = calls.module_of(op);
  graph_.values.resize(static_cast<std::size_t>(tape.flow().values()));
  const auto outs = tape.flow().outputs(op);
  if (!outs.empty()) info.stream = stream_on(values.device(outs.front().value));
  for (const plan::Output& out : outs) {
    plan::ValueInfo& value = graph_.values[static_cast<std::size_t>(out.value)];
    value.device = device_index(values.device(out.value));
    if (out.overwrites == plan::kNoValue) {
      MemoryGauge* const gauge = gauge_of(out.value);
      value.bytes = (gauge != nullptr ? gauge->memory() : gauges_.front().memory()).rounded(values.nbytes(out.value));
    } else {
      // It lives in the storage that was there before, whatever that counted as.
      value.bytes = graph_.values[static_cast<std::size_t>(out.overwrites)].bytes;
      std::erase(alive_, out.overwrites);
    }
    value.must = values.must(out.value);
    alive_.push_back(out.value);
  }
  kernels_.push_back({last_kernel(tape, op), take_seconds_again()});
  const auto [peak, net] = taken_by(tape.flow(), op, 0);
  info.peak_bytes = peak;
  info.other_bytes = net;
  for (std::size_t i = 0; i < graph_.parts.size(); ++i) graph_.parts[i].ops.push_back(taken_by(tape.flow(), op, i + 1));
  graph_.ops.push_back(std::move(info));
  push(Event::Kind::Run, op);
}

c10::SmallVector<Profiler::OnClock, 2> Profiler::last_kernel(const Tape& tape, plan::OpId op) const {
  if (gauges_.size() == 1) return {{0, kernel_[0]}};
  const auto among = [&](bool accelerators) {
    c10::SmallVector<OnClock, 2> found;
    const auto add = [&](plan::ValueId value) {
      const c10::Device device = tape.values().device(value);
      if (device.is_cpu() == accelerators) return;
      const auto gauge = std::ranges::find_if(gauges_, [&](const auto& g) { return g.memory().device() == device; });
      const auto clock = static_cast<std::size_t>(gauge - gauges_.begin());
      if (gauge != gauges_.end()) found.push_back({clock, kernel_[clock]});
    };
    for (const plan::ValueId input : tape.flow().inputs(op)) add(input);
    for (const plan::Output& out : tape.flow().outputs(op)) add(out.value);
    return found;
  };
  // The host only hands over what an accelerator does.
  c10::SmallVector<OnClock, 2> found = among(/*accelerators=*/true);
  if (found.empty()) found = among(/*accelerators=*/false);
  if (found.empty()) found.push_back({0, kernel_[0]});  // of devices that have no clock here
  return found;
}

MemoryGauge::Taken Profiler::taken_by(const plan::Dataflow& flow, plan::OpId op, std::size_t device) {
  count_evicted_of_others();
  const auto [peak, net] = gauges_[device].take_of_operator();
  Bytes outputs = 0;
  for (const plan::Output& out : flow.outputs(op)) {
    const plan::ValueInfo& value = info(out.value);
    if (out.overwrites == plan::kNoValue && static_cast<std::size_t>(value.device) == device) outputs += value.bytes;
  }
  return {peak, net - outputs};
}

plan::ValueInfo& Profiler::info(plan::ValueId value) {
  graph_.values.resize(std::max(graph_.values.size(), static_cast<std::size_t>(value) + 1));
  return graph_.values[static_cast<std::size_t>(value)];
}

bool Profiler::measures_encodings(const Tape& tape) { return tape.known_step() == nullptr || tape.divergence(); }

void Profiler::saved(const Tape& tape, plan::ValueId value) {
  const MeasuredEncodings::Taken taken{value, info(value).bytes};
  if (measures_encodings(tape) && encodings_.depends_on_contents(tape, taken)) {  // later they may have been evicted
    aside_begins();
    encodings_.measure_saved(tape, taken);
    aside_ends();
  }
  info(value).saved = true;
  push(Event::Kind::Save, value);
}

void Profiler::displaced(plan::ValueId value) { info(value).must = plan::Must::Recompute; }

void Profiler::unpacked(plan::ValueId value) {
  mark();
  push(Event::Kind::Unpack, value);
}

void Profiler::aside_begins() {
  if (Profiler* const other = one_in_turn()) return other->aside_begins();
  mark();
  replay_ = clocks_.front().now();
}

void Profiler::aside_ends() {
  if (Profiler* const other = one_in_turn()) return other->aside_ends();
  rebase();
  clocks_.front().leave_out(replay_, clocks_.front().now());
}

void Profiler::rebase() {
  count_evicted_of_others();
  for (MemoryGauge& gauge : gauges_) gauge.rebase();
}

void Profiler::release_begins(plan::ValueId value) {
  mark();
  push(Event::Kind::Release, value);
  releasing_ = true;
}

void Profiler::release_ends() {
  releasing_ = false;
  rebase();
}

void Profiler::evicts(const Tape& tape, plan::ValueId value) {
  // Before it is settled which step this is, and which values have been saved: later nobody can look at this one.
  if (tape.finished() || tape.ledger().packs(value) == 0 || !measures_encodings(tape)) return;
  if (!gauges_.front().memory().device().is_cpu()) return;  // whose clock takes memory, as that of an encoding does
  const StepClock::Moment began = clocks_.front().now();
  encodings_.measure(tape, {value, info(value).bytes});
  clocks_.front().leave_out(began, clocks_.front().now());
}

void Profiler::dropped(plan::ValueId value, std::optional<Bytes> freed) {
  if (freed) {
    MemoryGauge* const gauge = gauge_of(value);
    if (gauge == nullptr) return;
    gauge->evicted(*freed);
    if (waits_) turns_->evicted(gauge->memory(), *freed);
    return;
  }
  // The node has handed on what it saved, as the gradient of something: the Release event frees it, and it is there.
  if (releasing_ && std::ranges::find(alive_, value) == alive_.end()) died(value);
}

void Profiler::settle_begins(const Tape& tape) {
  look_at_others();
  poll(tape);
  mark();
  push(Event::Kind::Settle, -1);
  const StepClock::Moment began = clocks_.front().now();
  if (!measures_encodings(tape)) {
    const KnownStep* known = tape.known_step();
    for (std::size_t v = 0; v < std::min(graph_.values.size(), known->graph->values.size()); ++v)
      graph_.values[v].encodings = known->graph->values[v].encodings;
  } else {
    encodings_.note(tape, graph_);
  }
  clocks_.front().leave_out(began, clocks_.front().now());
}

void Profiler::rehearse(const Tape& tape, const std::function<bool()>& update) {
  {
    const PatientLock lock(tape.mutex());
    poll(tape);
    mark();
  }
  const StepClock::Moment began = clocks_.front().now();
  {
    const memory::TagScope tag(memory::Tag::Optimizer);
    if (!update()) return;
  }
  for (std::size_t i = 0; i < gauges_.size(); ++i) {
    const Bytes state = state_to_come_[i] = std::max<Bytes>(gauges_[i].grown(), 0);
    graph_.add_static(i, static_cast<std::size_t>(memory::Tag::Optimizer), state);
  }
  rebase();
  const StepClock::Moment again = clocks_.front().now();
  update();
  const StepClock::Moment ended = clocks_.front().now();
  std::vector<Bytes> peaks;
  for (MemoryGauge& gauge : gauges_) peaks.push_back(gauge.take_peak());
  graph_.end_with_update(peaks, 0);
  pushed_.push_back(ended);
  update_ = {again, ended};
  rebase();
  clocks_.front().leave_out(began, again);
}

void Profiler::note_seconds() {
  StepClock& clock = clocks_.front();
  for (std::size_t i = 1; i < gauges_.size(); ++i) StreamOrder::finish(gauges_[i].memory().device());
  const StepClock::Moment end = clock.now();
  for (StepClock& each : clocks_) each.settle();
  for (std::size_t op = 0; op < kernels_.size(); ++op) {
    // A copy waits on one of its devices for what the other has still to do.
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [of, span] : kernels_[op].spans) least = std::min(least, clocks_[of].seconds(span.from, span.to));
    graph_.ops[op].seconds = kernels_[op].again.value_or(least);
  }
  graph_.update_seconds = clock.seconds(update_.from, update_.to);
  StepClock::Moment before = 0;
  for (std::size_t i = 0; i < pushed_.size(); ++i) {
    const bool is_update = pushed_[i] == update_.to;
    graph_.events[i].seconds = is_update ? 0 : clock.seconds(before, pushed_[i]);
    before = pushed_[i];
  }
  graph_.set_step_seconds(clock.seconds(0, end) - graph_.update_seconds);
}

/// Results that the program still has in the storage of a leaf, such as running statistics: as they take no memory of
/// their own, dropping them would only cost replays.
void Profiler::keep_what_leaves_have(const Tape& tape) {
  for (plan::OpId op = 0; op < graph_.flow.ops(); ++op) {
    for (const plan::Output& out : graph_.flow.outputs(op)) {
      plan::ValueInfo& value = info(out.value);
      const bool is_free = out.overwrites != plan::kNoValue && value.bytes == 0;
      if (is_free && value.must == plan::Must::Nothing && tape.values().programs_storage(out.value))
        value.must = plan::Must::Keep;
    }
  }
}

plan::StepGraph Profiler::finish(const Tape& tape) {
  const PatientLock lock(tape.mutex());  // others may evict
  poll(tape);
  if (waits_) {
    waited();
  } else {
    mark();
  }
  note_seconds();
  graph_.flow = tape.flow();
  graph_.values.resize(static_cast<std::size_t>(graph_.flow.values()));
  std::vector<char> made(graph_.values.size(), 0);  // by an operator, be it that they cannot be made again
  for (plan::OpId op = 0; op < graph_.flow.ops(); ++op) {
    for (const plan::Output& out : graph_.flow.outputs(op)) made[plan::at(out.value)] = 1;
  }
  for (plan::ValueId v = 0; v < graph_.flow.values(); ++v) {
    // As turned out later: see UnshardedWeights.
    plan::Must& must = graph_.values[plan::at(v)].must;
    if (must == plan::Must::Nothing && tape.turned_out_kept(v)) must = plan::Must::Keep;
    if (made[plan::at(v)] != 0 || tape.values().of_result(v)) continue;
    graph_.values[plan::at(v)].device = device_index(tape.values().device(v));
    MemoryGauge* const gauge = gauge_of(v);
    graph_.values[plan::at(v)].leaf_bytes =
        (gauge != nullptr ? gauge->memory() : gauges_.front().memory()).rounded(tape.values().nbytes(v));
  }
  keep_what_leaves_have(tape);
  let_go_of_referred();
  encodings_.try_all(tape, graph_);
  return std::move(graph_);
}

}  // namespace snug::record
