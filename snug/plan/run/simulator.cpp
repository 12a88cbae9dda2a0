#include "snug/plan/run/simulator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "snug/base/match.h"
#include "snug/plan/run/away.h"
#include "snug/plan/run/departures.h"
#include "snug/plan/run/images.h"
#include "snug/plan/run/in_flight.h"
#include "snug/plan/run/ledger.h"
#include "snug/plan/run/prefetch.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/segments.h"
#include "snug/plan/step/step_walk.h"

namespace snug::plan {
namespace {

constexpr Bytes kNoLimit = std::numeric_limits<Bytes>::max();
Bytes limit_of(const std::optional<MoveCost>& cost) { return cost ? cost->budget.value_or(kNoLimit) : kNoLimit; }

class Run : public StepVisitor {
 public:
  Run(const StepGraph& graph, const MemoryPlan& plan)
      : graph_(graph),
        plan_(plan),
        in_segments_(plan.segments.empty() ? std::nullopt : std::optional(with_segments(graph.flow, plan.segments))),
        flow_(in_segments_ ? *in_segments_ : graph.flow),
        ledger_(flow_, [this](ValueId v) { dropped(v); }),
        walk_(graph),
        values_(graph.values.size()),
        prefetch_(staging_of(graph, plan)),
        host_(Home::Host, graph.moves.host, graph.values.size()),
        disk_(Home::Disk, graph.moves.disk, graph.values.size()),
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

  std::optional<Simulation> to_the_end(Detail detail, std::int64_t replays, Bytes on_host, Bytes on_disk) {
    const std::int32_t in_flight = graph_.in_flight;
    std::optional<OthersInFlight> others;
    if (in_flight > 1 || graph_.others_held > 0) others.emplace(graph_);
    if (detail == Detail::Timeline) {
      for (auto* each : {&result_.timeline, &result_.peaks}) each->reserve(graph_.events.size());
      result_.times.reserve(graph_.events.size());
    }
    while (!walk_.at_end()) {
      if (others) others->before_event(walk_.position(), live_, result_);
      highest_ = live_;
      events_seconds_ += graph_.events[walk_.position()].seconds;
      walk_.step(*this);
      if (result_.replayed_ops > replays || result_.host_peak * in_flight > on_host ||
          result_.disk_peak * in_flight > on_disk)
        return std::nullopt;
      if (detail == Detail::Timeline) {
        result_.timeline.push_back(live_);
        result_.peaks.push_back(std::max(highest_, live_));
        result_.times.push_back(now());
      }
    }
    result_.seconds = graph_.step_seconds + own_seconds();
    if (others) others->at_end(live_, result_);
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
        departures_.end(out.overwrites);
        gone(out.overwrites);
        // The storage changes hands: the old value's contents are gone. A leaf's are in a copy.
        ledger_.lose(out.overwrites);
      }
      if (flow_.is_leaf(out.value) || decided(graph_, plan_, out.value) == kKeep) ledger_.hold(out.value);
    }
    reach(live_, op);  // more than the operator's own peak only in a graph's file that contradicts itself
  }

  void unpack(ValueId v) {
    ++of(v).consumed;
    if (images_.has(v)) {
      unpack_image(v);
    } else {
      unpack_contents(v);
    }
    // While the node computes.
    if (!walk_.settled()) return;
    prefetch_.unpacked(
        ledger_, [this](ValueId next) { return bytes(next); }, [this](ValueId next) { return fetch(next), true; });
  }

  void release(ValueId v) {
    const bool consumed = of(v).consumed > 0;
    if (consumed) --of(v).consumed;
    const Unpacked unpacked = consumed ? Unpacked::Now : Unpacked::Not;
    if (images_.has(v)) {
      release_image(v, unpacked);
    } else {
      ledger_.release(v, unpacked);
      if (walk_.settled()) forget_if_useless(v);
    }
    live_ -= std::exchange(of(v).borrowed, 0) * bytes(v) + given_back_inside(v);
  }

  void die(ValueId v) {
    if (walk_.alive(v) && !of(v).leaving) original_goes(v);
  }

  void save(ValueId v) {
    if (is_lossy(decided(graph_, plan_, v))) return save_image(v);
    ledger_.pack(v);
    // Its contents leave the device's memory, but for what the program still refers to.
    if (ledger_.at_hand(v) || flow_.is_leaf(v)) return;
    const Action action = decided(graph_, plan_, v);
    if (is_moved(action)) move(v, action.home);
    if (is_compressed(action)) compress(v);
  }

  void settle() {
    for (const ValueId v : departures_.end_all()) gone(v);
    ledger_.settle(Leaves::Stay);
    for (ValueId v = 0; v < flow_.values(); ++v) forget_if_useless(v);
    for (const ValueId v : images_.settle()) live_ -= std::exchange(of(v).image, 0) + given_back_inside(v);
    result_.after_forward = live_;
    // A pass of the step's own may have asked before.
    ledger_.begin_pass();
    images_.begin_pass();
    for (const ValueId v : std::exchange(result_.asked, {})) of(v).asked = false;
  }

  void other(Bytes peak, Bytes net) {
    reach(live_ + std::max(peak, net), kNoOp);
    live_ += net;
  }

 private:
  struct OfValue {
    std::int32_t consumed = 0;
    Bytes encoded = 0;  // that its compressed contents take
    Bytes image = 0;    // that its image takes
    // Copies that were dropped while a node has the unpacked tensor: until a saved tensor is released, or, for nodes
    // that a pass inside the forward pass made and that saved the tensor without an event, until the last one is.
    std::int32_t borrowed = 0, borrowed_inside = 0;
    bool second = false;       // its storage is there, and a replay has made it again, or fetched it, in another
    Home home = Home::Device;  // of its contents, where they have been moved
    bool leaving = false;      // and nobody has waited for that
    bool asked = false;
  };
  Bytes given_back_inside(ValueId v) {
    return ledger_.packs(v) == 0 && !images_.has(v) ? std::exchange(of(v).borrowed_inside, 0) * bytes(v) : 0;
  }
  void borrow(ValueId v) { ++(walk_.settled() ? of(v).borrowed : of(v).borrowed_inside); }
  OfValue& of(ValueId v) { return values_[at(v)]; }
  [[nodiscard]] const OfValue& of(ValueId v) const { return values_[at(v)]; }

  Bytes bytes(ValueId v) const { return graph_.step_bytes(v); }

  Away& at_home(Home home) { return home == Home::Disk ? disk_ : host_; }

  void move(ValueId v, Home home) {
    ledger_.offload(v);
    of(v).home = home;
    Away& away = at_home(home);
    Bytes& peak = home == Home::Disk ? result_.disk_peak : result_.host_peak;
    peak = std::max(peak, away.take(v, bytes(v)));
    away.link.send(v, bytes(v), now());
    of(v).leaving = true;
    if (!away.cost.overlaps) return gone(v);
    result_.copying_seconds += away.cost.own_out(bytes(v));
    for (const ValueId other : departures_.begin(v, bytes(v), plan_.staging.leaving)) gone(other);
  }
  [[nodiscard]] const Encoding& encoding(ValueId v) const {
    return *find_encoding(graph_.values[at(v)].encodings, decided(graph_, plan_, v).codec);
  }
  /// Returns the bytes that it takes then.
  Bytes encode(ValueId v) {
    live_ += encoding(v).bytes;
    reach(live_ + encoding(v).encode_scratch, kNoOp);
    result_.coding_seconds += encoding(v).encode_seconds;
    return encoding(v).bytes;
  }
  /// Into bytes that are there.
  void decode(ValueId v) {
    reach(live_ + encoding(v).decode_scratch, kNoOp);
    result_.coding_seconds += encoding(v).decode_seconds;
  }
  void compress(ValueId v) {
    ledger_.offload(v);
    of(v).encoded = encode(v);
    if (!walk_.alive(v)) original_goes(v);
  }

  void save_image(ValueId v) {
    if (!images_.has(v)) {
      images_.add(v);
      of(v).image = encode(v);
    }
    images_.pack(v);
  }
  void unpack_image(ValueId v) {
    if (!images_.decoded(v)) {
      images_.set_decoded(v);
      live_ += bytes(v);
      decode(v);
    }
    // As what is unpacked of other values.
    if (images_.consume(v).decoded) borrow(v);
  }
  void release_image(ValueId v, Unpacked unpacked) {
    const Images::Gone gone = images_.release(v, unpacked);
    if (gone.decoded) live_ -= bytes(v);
    if (gone.image) live_ -= std::exchange(of(v).image, 0);
  }

  void unpack_contents(ValueId v) {
    if (!ledger_.resident(v)) replay(v);
    asked_for(v);
    unpacking_ = v;
    ledger_.consume(v);
    unpacking_ = kNoValue;
  }
  /// Its copy to the host is over, and waited for.
  void gone(ValueId v) {
    if (!std::exchange(of(v).leaving, false)) return;
    wait_until(at_home(of(v).home).link.left(v));
    if (!walk_.alive(v)) original_goes(v);
  }
  /// The storage in which it was made.
  void original_goes(ValueId v) {
    if (!ledger_.resident(v) || of(v).second) live_ -= bytes(v);
    of(v).second = false;
  }
  [[nodiscard]] bool has_original(ValueId v) const { return walk_.alive(v) || of(v).leaving; }

  void fetch(ValueId v) {
    live_ += bytes(v);
    reach(live_, kNoOp);
    if (of(v).home != Home::Device) {
      Away& away = at_home(of(v).home);
      away.link.fetch(v, bytes(v), now());
      if (away.cost.overlaps) {
        result_.copying_seconds += away.cost.own_in(bytes(v));
      } else {
        wait_until(away.link.there(v));
      }
    } else if (of(v).encoded > 0) {
      decode(v);
    }
    ledger_.cache(v);
    if (has_original(v)) of(v).second = true;
  }
  /// What was fetched is read.
  void asked_for(ValueId v) {
    note_asked(v);
    prefetch_.asked_for(v);
    if (ledger_.cached(v)) wait_until(at_home(of(v).home).link.there(v));
  }

  void note_asked(ValueId v) {
    if (!std::exchange(of(v).asked, true)) result_.asked.push_back(v);
  }

  [[nodiscard]] double now() const { return events_seconds_ + own_seconds(); }
  /// That the plan adds.
  [[nodiscard]] double own_seconds() const {
    return replay_seconds_ + result_.waiting_seconds + result_.coding_seconds + result_.copying_seconds;
  }
  void wait_until(double time) { result_.waiting_seconds += std::max(time - now(), 0.0); }

  /// What has been moved, or compressed, goes when nobody needs it.
  void forget_if_useless(ValueId v) {
    if (!ledger_.useless(v)) return;
    live_ -= std::exchange(of(v).encoded, 0);
    if (const Home home = std::exchange(of(v).home, Home::Device); home != Home::Device)
      at_home(home).give(v, bytes(v));
  }

  void reach(Bytes level, OpId op) {
    highest_ = std::max(highest_, level);
    if (level <= result_.peak) return;
    result_.peak = level;
    result_.peak_event = walk_.position();
    result_.peak_op = op;
  }

  void dropped(ValueId v) {
    if (has_original(v) && !of(v).second) return;
    of(v).second = false;
    if (unpacking_ == v) return borrow(v);
    live_ -= bytes(v);
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
    this->fetch(fetch.value);
  }

  void do_step(const RunAgain& step) {
    const OpInfo& info = graph_.ops[at(step.op)];
    for (const ValueId input : flow_.inputs(step.op)) asked_for(input);
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
        of(out.overwrites).second = false;
      }
      ledger_.cache(out.value);
      note_asked(out.value);
      if (has_original(out.value)) of(out.value).second = true;
    }
    ledger_.finish(step);
    replay_seconds_ += info.seconds;
    ++result_.replayed_ops;
    ++result_.replays[at(step.op)];
  }

  const StepGraph& graph_;
  const MemoryPlan& plan_;
  const std::optional<Dataflow> in_segments_;
  const Dataflow& flow_;
  Ledger ledger_;
  StepWalk walk_;
  std::vector<OfValue> values_;
  Images images_;
  Departures departures_;
  Prefetch prefetch_;
  Away host_, disk_;
  Bytes live_;
  Bytes highest_ = 0;  // during the event
  ValueId unpacking_ = kNoValue;
  double replay_seconds_ = 0, events_seconds_ = 0;
  Simulation result_;
};

}  // namespace

Simulation simulate(const StepGraph& graph, const MemoryPlan& plan, Detail detail) {
  return *Run(graph, plan).to_the_end(detail, std::numeric_limits<std::int64_t>::max(), kNoLimit, kNoLimit);
}

std::optional<Simulation> simulate_within(const StepGraph& graph, const MemoryPlan& plan, std::int64_t replays,
                                          Detail detail) {
  return Run(graph, plan).to_the_end(detail, replays, limit_of(graph.moves.host), limit_of(graph.moves.disk));
}

MemoryPlan predicted(const StepGraph& graph, MemoryPlan plan) {
  const Simulation run = simulate(graph, plan);
  plan.predicted_peak = run.peak;
  plan.predicted_seconds = run.seconds;
  return plan;
}

}  // namespace snug::plan
