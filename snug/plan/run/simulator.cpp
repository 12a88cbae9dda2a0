#include "snug/plan/run/simulator.h"

#include <algorithm>

#include "snug/base/match.h"
#include "snug/plan/run/ledger.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/segments.h"

namespace snug::plan {
namespace {

class Walk {
 public:
  Walk(const StepGraph& graph, const MemoryPlan& plan)
      : graph_(graph),
        plan_(plan),
        flow_(with_segments(graph.flow, plan.segments)),
        ledger_(flow_, [this](ValueId v) { dropped(v); }),
        alive_(graph.values.size(), 0),
        second_(graph.values.size(), 0),
        borrowed_(graph.values.size(), 0),
        consumed_(graph.values.size(), 0),
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
    result_.seconds = graph.step_seconds;
  }

  std::optional<Simulation> run(bool with_timeline, std::int64_t replays) {
    for (event_ = 0; event_ < graph_.events.size(); ++event_) {
      highest_ = live_;
      step(graph_.events[event_]);
      if (result_.replayed_ops > replays) break;
      if (with_timeline) {
        result_.timeline.push_back(live_);
        result_.peaks.push_back(std::max(highest_, live_));
      }
    }
    return result_.replayed_ops <= replays ? std::optional(std::move(result_)) : std::nullopt;
  }

 private:
  Bytes bytes(ValueId v) const { return graph_.values[at(v)].bytes; }
  bool moves(ValueId v) const { return !flow_.is_leaf(v) && decided(graph_, plan_, v).home == Home::Host; }

  void reach(Bytes level, OpId op) {
    highest_ = std::max(highest_, level);
    if (level <= result_.peak) return;
    result_.peak = level;
    result_.peak_event = event_;
    result_.peak_op = op;
  }

  void dropped(ValueId v) {
    if (alive_[at(v)] && !second_[at(v)]) return;
    second_[at(v)] = 0;
    // An unpacked tensor lives until its node is done, which is when the saved tensor is released.
    if (unpacking_ == v) {
      borrowed_[at(v)] = 1;
    } else {
      live_ -= bytes(v);
    }
  }

  void step(const Event& event) {
    switch (event.kind) {
      case Event::Kind::Run:
        run_op(event.id);
        break;
      case Event::Kind::Die:
        if (alive_[at(event.id)]) {
          alive_[at(event.id)] = 0;
          if (!ledger_.resident(event.id) || second_[at(event.id)]) live_ -= bytes(event.id);
          second_[at(event.id)] = 0;
        }
        break;
      case Event::Kind::Save:
        ledger_.pack(event.id);
        // Its contents leave the device's memory, but for what the program still refers to.
        if (moves(event.id) && !ledger_.at_hand(event.id)) ledger_.offload(event.id);
        break;
      case Event::Kind::Settle:
        ledger_.settle(/*keep_leaves=*/true);
        result_.after_forward = live_;
        break;
      case Event::Kind::Unpack:
        unpack(event.id);
        break;
      case Event::Kind::Release:
        release(event.id);
        break;
      case Event::Kind::Other:
        reach(live_ + event.peak, kNoOp);
        live_ += event.net;
        break;
    }
  }

  void run_op(OpId op) {
    const OpInfo& info = graph_.ops[at(op)];
    reach(live_ + info.peak_bytes, op);
    live_ += info.other_bytes;
    for (const Output& out : flow_.outputs(op)) {
      if (out.overwrites == kNoValue) {
        live_ += bytes(out.value);
      } else if (alive_[at(out.overwrites)]) {
        // The storage changes hands: the old value's contents are gone. A leaf's are in a copy.
        alive_[at(out.overwrites)] = 0;
        if (!flow_.is_leaf(out.overwrites)) ledger_.lose(out.overwrites);
      }
      alive_[at(out.value)] = 1;
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
    ledger_.release(v, consumed);
    if (borrowed_[at(v)]) {
      borrowed_[at(v)] = 0;
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
    const Replay replay = ledger_.schedule(v);
    ledger_.pin(replay);
    for (const Replay::Step& step : replay.steps) {
      std::visit(Match{[this](const Fetch& fetch) { do_step(fetch); }, [this](const RunAgain& run) { do_step(run); }},
                 step);
    }
    ledger_.unpin(replay, replay.steps.size());
  }

  void do_step(const Fetch& fetch) {
    if (ledger_.resident(fetch.value)) return;
    live_ += bytes(fetch.value);
    reach(live_, kNoOp);
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
      if (alive_[at(out.value)]) second_[at(out.value)] = 1;
    }
    ledger_.finish(step);
    result_.seconds += info.seconds;
    ++result_.replayed_ops;
    ++result_.replays[at(step.op)];
  }

  const StepGraph& graph_;
  const MemoryPlan& plan_;
  const Dataflow flow_;
  Ledger ledger_;
  std::vector<char> alive_;     // the program refers to it
  std::vector<char> second_;    // it does, and a replay has made the value again in another storage
  std::vector<char> borrowed_;  // dropped, but a backward node still uses the unpacked tensor
  std::vector<std::int32_t> consumed_;
  Bytes live_;
  Bytes highest_ = 0;  // during the event
  std::size_t event_ = 0;
  ValueId unpacking_ = kNoValue;
  Simulation result_;
};

}  // namespace

Simulation simulate(const StepGraph& graph, const MemoryPlan& plan, bool with_timeline) {
  return *Walk(graph, plan).run(with_timeline, std::numeric_limits<std::int64_t>::max());
}

std::optional<Simulation> simulate_within(const StepGraph& graph, const MemoryPlan& plan, std::int64_t replays,
                                          bool with_timeline) {
  return Walk(graph, plan).run(with_timeline, replays);
}

MemoryPlan predicted(const StepGraph& graph, MemoryPlan plan) {
  const Simulation run = simulate(graph, plan);
  plan.predicted_peak = run.peak;
  plan.predicted_seconds = run.seconds;
  return plan;
}

}  // namespace snug::plan
