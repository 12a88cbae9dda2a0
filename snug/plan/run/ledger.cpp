#include "snug/plan/run/ledger.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace snug::plan {

Ledger::Ledger(const Dataflow& flow, std::function<void(ValueId)> drop)
    : flow_(flow), drop_(std::move(drop)), scheduler_(flow) {}

void Ledger::grow(ValueId value) { entries_.resize(at(std::max(value + 1, flow_.values()))); }

void Ledger::drop_resident(ValueId value) {
  if (std::exchange(entry(value).residency, Residency::Absent) != Residency::Absent) drop_(value);
}

void Ledger::hold(ValueId value) { entry(value).residency = Residency::Held; }

void Ledger::offload(ValueId value) {
  const bool relied = settled_ && relies_on_operator(value) && needed(value);
  entry(value).residency = Residency::Absent;
  entry(value).source = Source::Fetch;
  if (!relied || flow_.is_leaf(value)) return;
  std::vector<ValueId> unneeded;
  unwant(flow_.producer(value), unneeded);
  retire(std::move(unneeded));
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
  if (e.pending == 0 && cached(value) && idle(e)) drop_resident(value);
}

void Ledger::release(ValueId value, bool consumed) {
  Entry& e = entry(value);
  --e.packs;
  if (!consumed && e.pending > 0) --e.pending;
  if (!settled_) return;
  if (e.pending == 0 && cached(value) && idle(e)) drop_resident(value);
  if (e.packs == 0 && e.readers == 0) retire({value});
}

void Ledger::begin_pass() {
  for (Entry& e : entries_) e.pending = e.packs;
}

void Ledger::end_pass() {
  for (ValueId v = 0; at(v) < entries_.size(); ++v) {
    if (cached(v) && idle(entry(v))) drop_resident(v);
  }
}

void Ledger::settle(bool keep_leaves) {
  if (settled_) return;
  settled_ = true;
  keep_leaves_ = keep_leaves;
  entries_.resize(at(flow_.values()));
  demand_.assign(at(flow_.ops()), 0);
  // Readers stand after producers, so one pass from the end sees every reader before the value it reads.
  for (OpId op = flow_.ops() - 1; op >= 0; --op) {
    for (const Output& out : flow_.outputs(op)) {
      if (flow_.producer(out.value) == op && relies_on_operator(out.value) && needed(out.value)) ++demand_[at(op)];
    }
    if (demand_[at(op)] == 0) continue;
    for (ValueId input : flow_.inputs(op)) ++entry(input).readers;
  }
  for (ValueId v = 0; v < flow_.values(); ++v) {
    if (resident(v) && !needed(v) && !stays(v)) drop_resident(v);
  }
}

/// One less of its results relies on the operator. `unneeded`: adds the inputs that nothing needs any more.
void Ledger::unwant(OpId op, std::vector<ValueId>& unneeded) {
  if (op == kNoOp || demand_[at(op)] == 0 || --demand_[at(op)] > 0) return;
  for (ValueId input : flow_.inputs(op)) {
    Entry& e = entry(input);
    if (--e.readers == 0 && e.packs == 0) unneeded.push_back(input);
  }
}

void Ledger::retire(std::vector<ValueId> unneeded) {
  while (!unneeded.empty()) {
    const ValueId v = unneeded.back();
    unneeded.pop_back();
    const bool relied = relies_on_operator(v);
    if (idle(entry(v)) && !stays(v)) drop_resident(v);
    if (relied) unwant(flow_.producer(v), unneeded);
  }
}

void Ledger::want(OpId first) {
  std::vector<OpId> wanted{first};
  while (!wanted.empty()) {
    const OpId op = wanted.back();
    wanted.pop_back();
    if (++demand_[at(op)] > 1) continue;
    for (ValueId input : flow_.inputs(op)) {
      Entry& e = entry(input);
      const bool newly_needed = e.packs == 0 && e.readers == 0;
      ++e.readers;
      if (newly_needed && relies_on_operator(input) && !flow_.is_leaf(input)) wanted.push_back(flow_.producer(input));
    }
  }
}

void Ledger::cache(ValueId value) {
  if (!held(value)) entry(value).residency = Residency::Cached;
}

void Ledger::finish(const RunAgain& step) {
  for (ValueId v : step.read_later) ++entry(v).pins;
  for (ValueId v : step.read_last) --entry(v).pins;
  for (ValueId v : step.drops) {
    if (!held(v)) drop_resident(v);
  }
}

void Ledger::pin(const Replay& replay) {
  for (ValueId v : replay.sources) ++entry(v).wanted;
}

bool Ledger::begin(const RunAgain& step) {
  const auto inputs = flow_.inputs(step.op);
  if (!std::ranges::all_of(inputs, [&](ValueId v) { return resident(v); })) return false;
  for (ValueId v : inputs) ++entry(v).pins;
  return true;
}

void Ledger::end(const RunAgain& step) {
  for (ValueId v : flow_.inputs(step.op)) --entry(v).pins;
}

void Ledger::unpin(const Replay& replay, std::size_t finished) {
  // The target, and what steps would have read that were not reached.
  for (std::size_t i = 0; i < finished; ++i) {
    const auto* const step = std::get_if<RunAgain>(&replay.steps[i]);
    if (step == nullptr) continue;
    for (ValueId v : step->read_later) --entry(v).pins;
    for (ValueId v : step->read_last) ++entry(v).pins;
  }
  for (ValueId v : replay.sources) {
    Entry& e = entry(v);
    if (--e.wanted > 0 || e.pins > 0) continue;
    // What became unneeded while it was wanted goes now.
    if (settled_ && !needed(v) && !stays(v)) drop_resident(v);
    if (cached(v) && e.pending == 0) drop_resident(v);
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
    cost[at(op)] = seconds(op) + inputs;
  }
  return cost;
}

bool Ledger::evictable(ValueId value, bool in_need) const {
  return resident(value) && entry(value).pins == 0 && (in_need || entry(value).wanted == 0) &&
         (fetchable(value) || !flow_.is_leaf(value));
}

void Ledger::evict(ValueId value) {
  // A cached value's operator is demanded already.
  const bool was_held = held(value);
  drop_resident(value);
  if (was_held && settled_ && needed(value) && !fetchable(value)) want(flow_.producer(value));
}

}  // namespace snug::plan
