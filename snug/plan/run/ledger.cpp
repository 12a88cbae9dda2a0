#include "snug/plan/run/ledger.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace snug::plan {

Ledger::Ledger(const Dataflow& flow, std::function<void(ValueId)> drop, LedgerState state)
    : flow_(flow), drop_(std::move(drop)), state_(std::move(state)), scheduler_(flow) {}

void Ledger::grow() { state_.values.resize(at(flow_.values())); }

void Ledger::drop_resident(ValueId value) {
  if (std::exchange(entry(value).residency, Residency::Absent) != Residency::Absent) drop_(value);
}

void Ledger::hold(ValueId value) { entry(value).residency = Residency::Held; }

void Ledger::offload(ValueId value) {
  const bool relied = state_.settled && relies_on_operator(value) && needed(value);
  entry(value).residency = Residency::Absent;
  entry(value).source = Source::Fetch;
  if (!relied || flow_.is_leaf(value)) return;
  unwant(flow_.producer(value));
  retire_unneeded();
}

void Ledger::take_back(ValueId value) {
  entry(value).source = Source::Recompute;
  hold(value);
}

void Ledger::forget(ValueId value) { entry(value).source = Source::Recompute; }

void Ledger::lose(ValueId value) { entry(value).residency = Residency::Absent; }

void Ledger::pack(ValueId value) {
  Entry& e = entry(value);
  ++e.packs;
  ++e.pending;
}

void Ledger::consume(ValueId value) {
  Entry& e = entry(value);
  if (e.pending > 0) --e.pending;
  if (e.pending == 0 && cached(value) && idle(e) && !stays_for_readers(value)) drop_resident(value);
}

void Ledger::release(ValueId value, Unpacked unpacked) {
  Entry& e = entry(value);
  --e.packs;
  if (unpacked == Unpacked::Not && e.pending > 0) --e.pending;
  if (!state_.settled) return;
  if (e.pending == 0 && cached(value) && idle(e) && !stays_for_readers(value)) drop_resident(value);
  if (e.packs == 0 && e.readers == 0) {
    unneeded_.push_back(value);
    retire_unneeded();
  }
}

void Ledger::begin_pass() {
  for (Entry& e : state_.values) e.pending = e.packs;
}

void Ledger::end_pass() {
  for (ValueId v = 0; at(v) < state_.values.size(); ++v) {
    if (cached(v) && idle(entry(v))) drop_resident(v);
  }
}

void Ledger::settle(Leaves leaves) {
  if (state_.settled) return;
  state_.settled = true;
  state_.keep_leaves = leaves == Leaves::Stay;
  state_.values.resize(at(flow_.values()));
  state_.demand.assign(at(flow_.ops()), 0);
  // Readers stand after producers, so one pass from the end sees every reader before the value it reads.
  for (OpId op = flow_.ops() - 1; op >= 0; --op) {
    for (const Output& out : flow_.outputs(op)) {
      if (flow_.producer(out.value) == op && relies_on_operator(out.value) && needed(out.value))
        ++state_.demand[at(op)];
    }
    if (state_.demand[at(op)] == 0) continue;
    for (ValueId input : flow_.inputs(op)) ++entry(input).readers;
  }
  for (ValueId v = 0; v < flow_.values(); ++v) {
    if (resident(v) && !needed(v) && !stays(v)) drop_resident(v);
  }
}

/// One less of its results relies on the operator. Its inputs that nothing needs any more are unneeded.
void Ledger::unwant(OpId op) {
  if (op == kNoOp || state_.demand[at(op)] == 0 || --state_.demand[at(op)] > 0) return;
  for (ValueId input : flow_.inputs(op)) {
    Entry& e = entry(input);
    if (--e.readers == 0 && e.packs == 0) unneeded_.push_back(input);
  }
}

void Ledger::retire_unneeded() {
  while (!unneeded_.empty()) {
    const ValueId v = unneeded_.back();
    unneeded_.pop_back();
    const bool relied = relies_on_operator(v);
    if (idle(entry(v)) && !stays(v)) drop_resident(v);
    if (relied) unwant(flow_.producer(v));
  }
}

void Ledger::want(OpId first) {
  std::vector<OpId> wanted{first};
  while (!wanted.empty()) {
    const OpId op = wanted.back();
    wanted.pop_back();
    if (++state_.demand[at(op)] > 1) continue;
    for (ValueId input : flow_.inputs(op)) {
      Entry& e = entry(input);
      const bool newly_needed = e.packs == 0 && e.readers == 0;
      ++e.readers;
      if (newly_needed && relies_on_operator(input) && !flow_.is_leaf(input)) wanted.push_back(flow_.producer(input));
    }
  }
}

/// What became unneeded while it was pinned or wanted goes now.
void Ledger::drop_if_useless(ValueId value) {
  if (state_.settled && useless(value) && entry(value).pins == 0 && !stays(value)) drop_resident(value);
}

void Ledger::remove_pin(ValueId value) {
  if (--entry(value).pins == 0) drop_if_useless(value);
}

void Ledger::cache(ValueId value) {
  if (!held(value)) entry(value).residency = Residency::Cached;
}

void Ledger::finish(const RunAgain& step) {
  for (ValueId v : step.read_later) ++entry(v).pins;
  for (ValueId v : step.read_last) remove_pin(v);
  for (ValueId v : step.drops) {
    if (!held(v)) drop_resident(v);
  }
  // A saved tensor for which it was to stay may have been released while the operator ran.
  for (const Output& out : flow_.outputs(step.op)) drop_if_useless(out.value);
}

void Ledger::pin(const ReplaySchedule& replay) {
  for (ValueId v : replay.sources) ++entry(v).wanted;
}

bool Ledger::begin(const RunAgain& step) {
  const auto inputs = flow_.inputs(step.op);
  if (!std::ranges::all_of(inputs, [&](ValueId v) { return resident(v); })) return false;
  for (ValueId v : inputs) ++entry(v).pins;
  return true;
}

void Ledger::end(const RunAgain& step) {
  for (ValueId v : flow_.inputs(step.op)) remove_pin(v);
}

void Ledger::unpin(const ReplaySchedule& replay, std::size_t finished) {
  // The target, and what steps would have read that were not reached. From the last, so that no count is too low.
  for (std::size_t i = finished; i-- > 0;) {
    const auto* const step = std::get_if<RunAgain>(&replay.steps[i]);
    if (step == nullptr) continue;
    for (ValueId v : step->read_last) ++entry(v).pins;
    for (ValueId v : step->read_later) remove_pin(v);
  }
  for (ValueId v : replay.sources) {
    Entry& e = entry(v);
    if (--e.wanted > 0 || e.pins > 0) continue;
    drop_if_useless(v);
    if (cached(v) && e.pending == 0 && !stays_for_readers(v)) drop_resident(v);
  }
}

std::vector<double> Ledger::recovery_seconds(const std::function<double(OpId)>& seconds) const {
  constexpr double kGone = std::numeric_limits<double>::infinity();
  std::vector<double> cost(at(flow_.ops()));
  for (OpId op = 0; op < flow_.ops(); ++op) {
    double inputs = 0;
    for (ValueId input : flow_.inputs(op)) {
      if (held(input) || fetchable(input)) continue;
      inputs = std::max(inputs, flow_.is_leaf(input) ? kGone : cost[at(flow_.producer(input))]);
    }
    cost[at(op)] = flow_.runs_together(op) ? kGone : seconds(op) + inputs;
  }
  return cost;
}

bool Ledger::evictable(ValueId value, Resort resort) const {
  return resident(value) && entry(value).pins == 0 && (resort == Resort::Last || entry(value).wanted == 0) &&
         (fetchable(value) || !flow_.is_leaf(value));
}

void Ledger::evict(ValueId value) {
  // A cached value's operator is demanded already.
  const bool was_held = held(value);
  drop_resident(value);
  if (was_held && state_.settled && needed(value) && !fetchable(value)) want(flow_.producer(value));
}

void Ledger::give_up(ValueId value) {
  entry(value).source = Source::Recompute;
  if (state_.settled && needed(value)) want(flow_.producer(value));
}

}  // namespace snug::plan
