#include "snug/plan/run/ledger.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace snug::plan {

Ledger::Ledger(const Dataflow& flow, std::function<void(ValueId)> drop) : flow_(flow), drop_(std::move(drop)) {}

void Ledger::grow(ValueId value) { entries_.resize(at(std::max(value + 1, flow_.values()))); }

int Ledger::demand(OpId op) const { return at(op) < demand_.size() ? demand_[at(op)] : 0; }

void Ledger::drop_resident(ValueId value) {
  Entry& e = entry(value);
  if (!e.held && !e.cached) return;
  e.held = e.cached = false;
  drop_(value);
}

void Ledger::hold(ValueId value) {
  Entry& e = entry(value);
  e.cached = false;
  e.held = true;
}

void Ledger::offload(ValueId value) {
  Entry& e = entry(value);
  e.held = e.cached = false;
  e.offloaded = true;
}

void Ledger::lose(ValueId value) {
  Entry& e = entry(value);
  e.held = e.cached = false;
}

void Ledger::pack(ValueId value) {
  Entry& e = entry(value);
  ++e.packs;
  ++e.pending;
}

void Ledger::consume(ValueId value) {
  Entry& e = entry(value);
  if (e.pending > 0) --e.pending;
  if (e.pending == 0 && e.cached && idle(e)) drop_resident(value);
}

void Ledger::release(ValueId value, bool consumed) {
  Entry& e = entry(value);
  --e.packs;
  if (!consumed && e.pending > 0) --e.pending;
  if (!settled_) return;
  if (e.pending == 0 && e.cached && idle(e)) drop_resident(value);
  if (e.packs == 0 && e.readers == 0) retire(value);
}

void Ledger::begin_pass() {
  for (Entry& e : entries_) e.pending = e.packs;
}

void Ledger::end_pass() {
  for (ValueId v = 0; at(v) < entries_.size(); ++v) {
    if (entry(v).cached && idle(entry(v))) drop_resident(v);
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
      if (flow_.producer(out.value) == op && !held(out.value) && needed(out.value)) ++demand_[at(op)];
    }
    if (demand_[at(op)] == 0) continue;
    for (ValueId input : flow_.inputs(op)) ++entry(input).readers;
  }
  for (ValueId v = 0; v < flow_.values(); ++v) {
    if (resident(v) && !needed(v) && !stays(v)) drop_resident(v);
  }
}

void Ledger::retire(ValueId value) {
  std::vector<ValueId> unneeded{value};
  while (!unneeded.empty()) {
    const ValueId v = unneeded.back();
    unneeded.pop_back();
    const bool was_held = entry(v).held;
    if (idle(entry(v)) && !stays(v)) drop_resident(v);
    const OpId op = flow_.producer(v);
    if (was_held || op == kNoOp || demand_[at(op)] == 0 || --demand_[at(op)] > 0) continue;
    for (ValueId input : flow_.inputs(op)) {
      Entry& e = entry(input);
      if (--e.readers == 0 && e.packs == 0) unneeded.push_back(input);
    }
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
      if (newly_needed && !e.held && !flow_.is_leaf(input)) wanted.push_back(flow_.producer(input));
    }
  }
}

Replay Ledger::schedule(ValueId target) const {
  if (offloaded(target)) return {{}, {}, {target}};
  const OpId last = flow_.producer(target);
  if (last == kNoOp) throw std::logic_error("ledger: a leaf is absent and cannot be made again");
  const SegmentId segment = flow_.scope(target);
  op_marks_.begin(at(flow_.ops()));
  value_marks_.begin(at(flow_.values()));
  enum : std::uint8_t { kPath = 1, kAlong = 2 };  // of operators: target depends on it; made along with it
  enum : std::uint8_t { kRead = 1, kStays = 2 };  // of values: a later step reads it; it outlives the replay
  OpId first = last;
  std::vector<OpId> stack{last};
  op_marks_.set(at(last), kPath);
  while (!stack.empty()) {
    const OpId op = stack.back();
    stack.pop_back();
    first = std::min(first, op);
    for (ValueId input : flow_.inputs(op)) {
      if (at_hand(input)) continue;
      const OpId producer = flow_.producer(input);
      if (producer == kNoOp) throw std::logic_error("ledger: a leaf is absent and cannot be made again");
      if (op_marks_.get(at(producer)) != 0) continue;
      op_marks_.set(at(producer), kPath);
      stack.push_back(producer);
    }
  }
  const auto made_here = [&](ValueId v) {
    const OpId producer = flow_.producer(v);
    return producer != kNoOp && producer <= last && op_marks_.get(at(producer)) != 0;
  };
  const auto waited_for = [&](ValueId v) { return has(v) && entry(v).pending > 0 && !resident(v); };
  // Segments that hold the target: what is made in them stays for its turn. Others are only passed through.
  const auto encloses = [&](SegmentId s) { return s == segment || flow_.common_segment(s, segment) == s; };
  // What else is waited for and reads something that is computed here: now, or its inputs are computed twice.
  for (OpId op = first; op < last; ++op) {
    if (op_marks_.get(at(op)) != 0 || demand(op) == 0 || !encloses(flow_.segment(op))) continue;
    bool reads_ours = false;
    bool ready = true;
    for (ValueId input : flow_.inputs(op)) {
      if (made_here(input) && !at_hand(input)) {
        reads_ours = true;
      } else {
        ready = ready && at_hand(input);
      }
    }
    if (reads_ours && ready) op_marks_.set(at(op), kAlong);
  }
  // What those segments know of stays: values that saved tensors wait for, and inputs of a nested segment, so that it
  // can be replayed on its own when its turn comes.
  for (OpId op = first; op <= last; ++op) {
    if (op_marks_.get(at(op)) == 0) continue;
    const SegmentId here = flow_.segment(op);
    for (const Output& out : flow_.outputs(op)) {
      if (waited_for(out.value) && encloses(flow_.scope(out.value))) value_marks_.add(at(out.value), kStays);
    }
    if (demand(op) == 0 || encloses(here)) continue;
    for (ValueId input : flow_.inputs(op)) {
      if (at_hand(input)) continue;
      const SegmentId born = flow_.segment(flow_.producer(input));
      if (born != here && encloses(flow_.common_segment(born, here))) value_marks_.add(at(input), kStays);
    }
  }
  const auto marked = [&](ValueId v, std::uint8_t mark) { return (value_marks_.get(at(v)) & mark) != 0; };
  std::vector<ReplayStep> steps;
  Replay replay;
  for (OpId op = last; op >= first; --op) {
    if (op_marks_.get(at(op)) == 0) continue;
    // Made along: only what ends in a value that stays.
    if (op_marks_.get(at(op)) == kAlong && std::ranges::none_of(flow_.outputs(op), [&](const Output& out) {
          return value_marks_.get(at(out.value)) != 0;
        })) {
      op_marks_.set(at(op), 0);
      continue;
    }
    ReplayStep step;
    step.op = op;
    if (op == last) step.read_later.push_back(target);  // by the caller
    for (const Output& out : flow_.outputs(op)) {
      if (resident(out.value)) continue;
      if (marked(out.value, kRead)) step.read_later.push_back(out.value);
      // Nobody reads it after its operator, and it is not to stay.
      if (value_marks_.get(at(out.value)) == 0 && out.value != target) step.drops.push_back(out.value);
    }
    for (ValueId input : flow_.inputs(op)) {
      if (at_hand(input)) {
        replay.sources.push_back(input);
        if (!resident(input) && std::ranges::find(replay.loads, input) == replay.loads.end())
          replay.loads.push_back(input);
        continue;
      }
      if (marked(input, kRead)) continue;
      value_marks_.add(at(input), kRead);
      step.read_last.push_back(input);
      if (!marked(input, kStays)) step.drops.push_back(input);
    }
    steps.push_back(std::move(step));
  }
  std::reverse(steps.begin(), steps.end());
  for (ReplayStep& step : steps) {
    for (const Output& out : flow_.outputs(step.op)) {
      if (out.overwrites == kNoValue ||
          std::ranges::find(flow_.inputs(step.op), out.overwrites) == flow_.inputs(step.op).end())
        continue;
      if (std::ranges::find(step.drops, out.overwrites) == step.drops.end()) step.copies.push_back(out.overwrites);
    }
  }
  replay.steps = std::move(steps);
  return replay;
}

void Ledger::cache(ValueId value) {
  Entry& e = entry(value);
  if (!e.held) e.cached = true;
}

void Ledger::finish(const ReplayStep& step) {
  for (ValueId v : step.read_later) ++entry(v).pins;
  for (ValueId v : step.read_last) --entry(v).pins;
  for (ValueId v : step.drops) {
    if (!entry(v).held) drop_resident(v);
  }
}

void Ledger::pin(const Replay& replay) {
  for (ValueId v : replay.sources) ++entry(v).wanted;
}

bool Ledger::begin(const ReplayStep& step) {
  const auto inputs = flow_.inputs(step.op);
  if (!std::ranges::all_of(inputs, [&](ValueId v) { return resident(v); })) return false;
  for (ValueId v : inputs) ++entry(v).pins;
  return true;
}

void Ledger::end(const ReplayStep& step) {
  for (ValueId v : flow_.inputs(step.op)) --entry(v).pins;
}

void Ledger::unpin(const Replay& replay) {
  // Still pinned only when the replay was cut short.
  for (const ReplayStep& step : replay.steps) {
    for (ValueId v : step.read_later) entry(v).pins = 0;
  }
  for (ValueId v : replay.sources) {
    Entry& e = entry(v);
    if (--e.wanted > 0 || e.pins > 0) continue;
    // What became unneeded while it was wanted goes now.
    if (settled_ && !needed(v) && !stays(v)) drop_resident(v);
    if (e.cached && e.pending == 0) drop_resident(v);
  }
}

std::vector<double> Ledger::recovery_seconds(const std::function<double(OpId)>& seconds) const {
  constexpr double kGone = std::numeric_limits<double>::infinity();
  std::vector<double> cost(at(flow_.ops()));
  for (OpId op = 0; op < flow_.ops(); ++op) {
    double inputs = 0;
    for (ValueId input : flow_.inputs(op)) {
      if (held(input)) continue;
      inputs = std::max(inputs, flow_.is_leaf(input) ? kGone : cost[at(flow_.producer(input))]);
    }
    cost[at(op)] = seconds(op) + inputs;
  }
  return cost;
}

bool Ledger::evictable(ValueId value, bool in_need) const {
  return resident(value) && entry(value).pins == 0 && (in_need || entry(value).wanted == 0) && !flow_.is_leaf(value);
}

void Ledger::evict(ValueId value) {
  // A cached value's operator is demanded already.
  const bool was_held = held(value);
  drop_resident(value);
  if (was_held && settled_ && needed(value)) want(flow_.producer(value));
}

}  // namespace snug::plan
