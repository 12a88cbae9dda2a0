#include "snug/plan/run/simulator.h"

#include <algorithm>

#include "snug/base/match.h"
#include "snug/plan/run/ledger.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/segments.h"
#include "snug/plan/step/step_walk.h"

namespace snug::plan {
namespace {

constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();
constexpr Bytes kHostPage = 4_KiB;  // what the host's memory is handed out in

Bytes whole_pages(Bytes bytes) { return (bytes + kHostPage - 1) / kHostPage * kHostPage; }

class Run : public StepVisitor {
 public:
  Run(const StepGraph& graph, const MemoryPlan& plan)
      : graph_(graph),
        plan_(plan),
        flow_(with_segments(graph.flow, plan.segments)),
        ledger_(flow_, [this](ValueId v) { dropped(v); }),
        walk_(graph),
        second_(graph.values.size(), 0),
        borrowed_(graph.values.size(), 0),
        consumed_(graph.values.size(), 0),
        moved_(graph.values.size(), 0),
        live_(graph.static_bytes) {
    for (ValueId v = 0; v < flow_.values(); ++v) {
      if (flow_.is_leaf(v)) ledger_.hold(v);
    }
    // Opaque values come out of an operator too; they are held when they are made.
    for (OpId op = 0; op < flow_.ops(); ++op) {
      for (const Output& out : flow_.outputs(op)) ledger_.lose(out.value);
    }
    result_.replays.assign(graph.ops.size(), 0);
    result_.peak = live_;
  }

  std::optional<Simulation> to_the_end(Detail detail, std::int64_t replays, Bytes on_host) {
    while (!walk_.at_end()) {
      highest_ = live_;
      walk_.step(*this);
      if (result_.replayed_ops > replays || result_.host_peak > on_host) return std::nullopt;
      if (detail == Detail::Timeline) {
        result_.timeline.push_back(live_);
        result_.peaks.push_back(std::max(highest_, live_));
        clock_ += graph_.events[result_.times.size()].seconds;
        result_.times.push_back(clock_ + replay_seconds_ + result_.moving_seconds);
      }
    }
    result_.seconds = graph_.step_seconds + replay_seconds_ + result_.moving_seconds;
    return std::move(result_);
  }

  // As the events have it.
  void run(OpId op) {
    const OpInfo& info = graph_.ops[at(op)];
    reach(live_ + info.peak_bytes, op);
    live_ += info.other_bytes;
    for (const Output& out : flow_.outputs(op)) {
      if (out.overwrites == kNoValue) {
        live_ += bytes(out.value);
      } else if (walk_.alive(out.overwrites) && !flow_.is_leaf(out.overwrites)) {
        // The storage changes hands: the old value's contents are gone. A leaf's are in a copy.
        ledger_.lose(out.overwrites);
      }
      if (flow_.is_leaf(out.value) || decided(graph_, plan_, out.value).home == Home::Device) ledger_.hold(out.value);
    }
  }

  void unpack(ValueId v) {
    if (!ledger_.resident(v)) replay(v);
    unpacking_ = v;
    ++consumed_[at(v)];
    ledger_.consume(v);
    unpacking_ = kNoValue;
  }

  void release(ValueId v) {
    const bool consumed = consumed_[at(v)] > 0;
    if (consumed) --consumed_[at(v)];
    ledger_.release(v, consumed ? Unpacked::Now : Unpacked::Not);
    if (walk_.settled()) forget_if_useless(v);
    if (borrowed_[at(v)]) {
      borrowed_[at(v)] = 0;
      live_ -= bytes(v);
    }
  }

  void die(ValueId v) {
    if (!walk_.alive(v)) return;
    if (!ledger_.resident(v) || second_[at(v)]) live_ -= bytes(v);
    second_[at(v)] = 0;
  }

  void save(ValueId v) {
    ledger_.pack(v);
    // Its contents leave the device's memory, but for what the program still refers to.
    if (!ledger_.at_hand(v) && moves(v)) move(v);
  }

  void settle() {
    ledger_.settle(Leaves::Stay);
    for (ValueId v = 0; v < flow_.values(); ++v) forget_if_useless(v);
    result_.after_forward = live_;
  }

  void other(Bytes peak, Bytes net) {
    reach(live_ + peak, kNoOp);
    live_ += net;
  }

 private:
  Bytes bytes(ValueId v) const { return graph_.step_bytes(v); }
  bool moves(ValueId v) const { return !flow_.is_leaf(v) && decided(graph_, plan_, v).home == Home::Host; }

  void move(ValueId v) {
    ledger_.offload(v);
    moved_[at(v)] = 1;
    on_host_ += whole_pages(bytes(v));
    result_.host_peak = std::max(result_.host_peak, on_host_);
    if (graph_.host) result_.moving_seconds += graph_.host->out(bytes(v));
  }
  /// What has been moved goes when nobody needs it.
  void forget_if_useless(ValueId v) {
    if (!moved_[at(v)] || !ledger_.useless(v)) return;
    moved_[at(v)] = 0;
    on_host_ -= whole_pages(bytes(v));
  }

  void reach(Bytes level, OpId op) {
    highest_ = std::max(highest_, level);
    if (level <= result_.peak) return;
    result_.peak = level;
    result_.peak_event = walk_.position();
    result_.peak_op = op;
  }

  void dropped(ValueId v) {
    if (walk_.alive(v) && !second_[at(v)]) return;
    second_[at(v)] = 0;
    // An unpacked tensor lives until its node is done, which is when the saved tensor is released.
    if (unpacking_ == v) {
      borrowed_[at(v)] = 1;
    } else {
      live_ -= bytes(v);
    }
  }

  /// Whether an output in place needs a storage of its own before its operator runs: a copy of what lives on, or room
  /// for what is replaced whole. Otherwise it takes over the storage that it overwrites.
  bool written_anew(const RunAgain& step, const Output& out) const {
    if (out.overwrites == kNoValue) return false;
    const auto inputs = flow_.inputs(step.op);
    const bool whole = std::ranges::find(inputs, out.overwrites) == inputs.end();
    return whole || std::ranges::find(step.copies, out.overwrites) != step.copies.end();
  }

  void replay(ValueId v) {
    const ReplaySchedule replay = ledger_.schedule(v);
    ledger_.pin(replay);
    for (const ReplaySchedule::Step& step : replay.steps) {
      std::visit(Match{[this](const Fetch& fetch) { do_step(fetch); }, [this](const RunAgain& run) { do_step(run); }},
                 step);
    }
    ledger_.unpin(replay, replay.steps.size());
  }

  void do_step(const Fetch& fetch) {
    if (ledger_.resident(fetch.value)) return;
    live_ += bytes(fetch.value);
    reach(live_, kNoOp);
    if (graph_.host) result_.moving_seconds += graph_.host->in(bytes(fetch.value));
    ledger_.cache(fetch.value);
  }

  void do_step(const RunAgain& step) {
    const OpInfo& info = graph_.ops[at(step.op)];
    for (const Output& out : flow_.outputs(step.op)) {
      if (written_anew(step, out)) live_ += bytes(out.value);
    }
    reach(live_ + info.peak_bytes, step.op);
    for (const Output& out : flow_.outputs(step.op)) {
      const bool anew = written_anew(step, out);
      if (ledger_.resident(out.value)) {
        if (anew) live_ -= bytes(out.value);  // the one that is there stays
        continue;
      }
      if (out.overwrites == kNoValue) {
        live_ += bytes(out.value);
      } else if (!anew) {
        ledger_.lose(out.overwrites);
        second_[at(out.overwrites)] = 0;
      }
      ledger_.cache(out.value);
      if (walk_.alive(out.value)) second_[at(out.value)] = 1;
    }
    ledger_.finish(step);
    replay_seconds_ += info.seconds;
    ++result_.replayed_ops;
    ++result_.replays[at(step.op)];
  }

  const StepGraph& graph_;
  const MemoryPlan& plan_;
  const Dataflow flow_;
  Ledger ledger_;
  StepWalk walk_;
  std::vector<char> second_;    // it does, and a replay has made the value again in another storage
  std::vector<char> borrowed_;  // dropped, but a backward node still uses the unpacked tensor
  std::vector<std::int32_t> consumed_;
  std::vector<char> moved_;  // its contents are on the host
  Bytes live_;
  Bytes on_host_ = 0;
  Bytes highest_ = 0;  // during the event
  ValueId unpacking_ = kNoValue;
  double replay_seconds_ = 0, clock_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const StepGraph& graph, const MemoryPlan& plan, Detail detail) {
  return *Run(graph, plan).to_the_end(detail, std::numeric_limits<std::int64_t>::max(), kNoLimit);
}

std::optional<Simulation> simulate_within(const StepGraph& graph, const MemoryPlan& plan, std::int64_t replays,
                                          Detail detail) {
  const Bytes on_host = graph.host ? graph.host->budget.value_or(kNoLimit) : kNoLimit;
  return Run(graph, plan).to_the_end(detail, replays, on_host);
}

MemoryPlan predicted(const StepGraph& graph, MemoryPlan plan) {
  const Simulation run = simulate(graph, plan);
  plan.predicted_peak = run.peak;
  plan.predicted_seconds = run.seconds;
  return plan;
}

}  // namespace snug::plan
