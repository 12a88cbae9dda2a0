#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/segments.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan::synthetic {

/// A slow second opinion on the simulator and the ledger. Storages are objects that count themselves while somebody
/// refers to them, and what is needed is worked out anew from its definition each time.
class StepInterpreter {
 public:
  StepInterpreter(const StepGraph& graph, const MemoryPlan& plan)
      : graph_(graph),
        plan_(plan),
        flow_(with_segments(graph.flow, plan.segments)),
        live_(graph.static_bytes),
        peak(live_) {}

  void run() {
    for (const Event& e : graph_.events) {
      switch (e.kind) {
        case Event::Kind::Run:
          forward(e.id);
          break;
        case Event::Kind::Die:
          program_.erase(e.id);
          break;
        case Event::Kind::Save:
          ++packs_[e.id], ++pending_[e.id];
          break;
        case Event::Kind::Settle:
          settled_ = true;
          break;
        case Event::Kind::Unpack:
          unpack(e.id);
          break;
        case Event::Kind::Release:
          release(e.id);
          break;
        case Event::Kind::Other:
          reach(e.peak), live_ += e.net;
          break;
      }
      if (settled_)
        std::erase_if(held_, [needed = needed_values()](const auto& h) { return !needed.contains(h.first); });
      timeline.push_back(live_);
    }
  }

 private:
  struct Storage {
    Storage(Bytes size, Bytes& total) : bytes(size), live(total) { live += bytes; }
    ~Storage() { live -= bytes; }
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;
    Bytes bytes;
    Bytes& live;
  };
  using Ref = std::shared_ptr<Storage>;

  Ref storage_for(ValueId v) {
    return std::make_shared<Storage>(graph_.values[static_cast<std::size_t>(v)].bytes, live_);
  }
  const OpInfo& info(OpId op) const { return graph_.ops[static_cast<std::size_t>(op)]; }
  void reach(Bytes above) { peak = std::max(peak, live_ + above); }
  bool resident(ValueId v) const { return flow_.is_leaf(v) || held_.contains(v) || cached_.contains(v); }
  bool waited_for(ValueId v) const { return pending_.contains(v) && pending_.at(v) > 0 && !resident(v); }
  bool reads(OpId op, ValueId v) const { return std::ranges::find(flow_.inputs(op), v) != flow_.inputs(op).end(); }

  /// Saved, or read by an operator whose result is needed and not held.
  std::set<ValueId> needed_values() const {
    std::set<ValueId> needed;
    for (const auto& [v, count] : packs_) {
      if (count > 0) needed.insert(v);
    }
    for (OpId op = flow_.ops() - 1; op >= 0; --op) {
      if (demanded(op, needed)) needed.insert(flow_.inputs(op).begin(), flow_.inputs(op).end());
    }
    return needed;
  }
  bool demanded(OpId op, const std::set<ValueId>& needed) const {
    return std::ranges::any_of(
        flow_.outputs(op), [&](const Output& out) { return needed.contains(out.value) && !held_.contains(out.value); });
  }

  void forward(OpId op) {
    reach(info(op).peak_bytes);
    live_ += info(op).other_bytes;
    for (const Output& out : flow_.outputs(op)) {
      if (out.overwrites == kNoValue) {
        program_[out.value] = storage_for(out.value);
      } else {
        program_[out.value] = program_.extract(out.overwrites).mapped();
        held_.erase(out.overwrites);
      }
      if (plan_.keeps(out.value)) held_[out.value] = program_[out.value];
    }
  }

  void unpack(ValueId v) {
    if (!resident(v)) replay(v);
    if (flow_.is_leaf(v)) return;
    unpacked_[v] = held_.contains(v) ? held_[v] : cached_[v];
    ++consumed_[v];
    if (--pending_[v] == 0) cached_.erase(v);
  }
  void release(ValueId v) {
    unpacked_.erase(v);
    --packs_[v];
    if (consumed_[v] > 0) {
      --consumed_[v];
    } else {
      --pending_[v];
    }
    if (pending_[v] <= 0) cached_.erase(v);
    const auto needed = needed_values();
    std::erase_if(cached_, [&](const auto& c) { return !needed.contains(c.first); });
  }

  void replay(ValueId target) {
    const OpId last = flow_.producer(target);
    const SegmentId segment = scope(target);
    const auto needed = needed_values();
    std::set<OpId> chosen = ancestors(last);
    const OpId first = *chosen.begin();
    const std::set<OpId> must = chosen;
    const auto made = [&](ValueId v) { return !resident(v) && chosen.contains(flow_.producer(v)); };
    for (OpId op = first; op < last; ++op) {
      const auto inputs = flow_.inputs(op);
      if (inside(segment, flow_.segment(op)) && demanded(op, needed) && std::ranges::any_of(inputs, made) &&
          std::ranges::all_of(inputs, [&](ValueId v) { return made(v) || resident(v); })) {
        chosen.insert(op);
      }
    }
    // What the segments around the target know of.
    const auto known = [&](ValueId v) { return inside(segment, scope(v)); };
    const auto read_by_nested = [&](ValueId v) {
      return std::ranges::any_of(must, [&](OpId op) {
        const SegmentId here = flow_.segment(op), born = flow_.segment(flow_.producer(v));
        return reads(op, v) && here != born && !inside(segment, here) && demanded(op, needed) &&
               inside(segment, around(here, born));
      });
    };
    const auto stays = [&](ValueId v) { return (waited_for(v) && known(v)) || read_by_nested(v); };
    for (OpId op = last; op >= first; --op) {
      if (!chosen.contains(op) || must.contains(op)) continue;
      const bool useful = std::ranges::any_of(flow_.outputs(op), [&](const Output& out) {
        return (!resident(out.value) && stays(out.value)) ||
               (!resident(out.value) && last_reader(chosen, out.value).has_value());
      });
      if (!useful) chosen.erase(op);
    }
    std::set<ValueId> sources;
    std::map<OpId, std::set<ValueId>> dead;
    for (OpId op : chosen) {
      for (const Output& out : flow_.outputs(op)) {
        if (!resident(out.value) && !last_reader(chosen, out.value) && !stays(out.value) && out.value != target)
          dead[op].insert(out.value);
      }
      for (ValueId v : flow_.inputs(op)) {
        if (resident(v)) {
          sources.insert(v);
          continue;
        }
        if (last_reader(chosen, v) == op && !stays(v)) dead[op].insert(v);
      }
    }
    for (OpId op : chosen) execute(op, dead[op]);
    for (ValueId v : sources) {
      if (pending_[v] <= 0) cached_.erase(v);
    }
  }

  /// Whether `s` lies in `outer`, or is it.
  bool inside(SegmentId s, SegmentId outer) const {
    while (s != outer && s != kRootSegment) s = flow_.parent(s);
    return s == outer;
  }
  SegmentId around(SegmentId a, SegmentId b) const {
    while (!inside(b, a)) a = flow_.parent(a);
    return a;
  }
  SegmentId scope(ValueId v) const {
    SegmentId s = flow_.segment(flow_.producer(v));
    for (OpId op = 0; op < flow_.ops(); ++op) {
      if (reads(op, v)) s = around(s, flow_.segment(op));
    }
    return s;
  }

  std::set<OpId> ancestors(OpId op) const {
    std::set<OpId> all{op};
    for (ValueId v : flow_.inputs(op)) {
      if (!resident(v) && !all.contains(flow_.producer(v))) all.merge(ancestors(flow_.producer(v)));
    }
    return all;
  }
  std::optional<OpId> last_reader(const std::set<OpId>& ops, ValueId v) const {
    const auto reader = std::find_if(ops.rbegin(), ops.rend(), [&](OpId op) { return reads(op, v); });
    return reader == ops.rend() ? std::nullopt : std::optional(*reader);
  }

  void execute(OpId op, const std::set<ValueId>& dead) {
    std::map<ValueId, Ref> written;  // by what is overwritten
    for (const Output& out : flow_.outputs(op)) {
      if (out.overwrites == kNoValue) continue;
      if (reads(op, out.overwrites) && dead.contains(out.overwrites)) {
        written[out.overwrites] = cached_.extract(out.overwrites).mapped();
      } else {
        written[out.overwrites] = storage_for(out.overwrites);
      }
    }
    reach(info(op).peak_bytes);
    for (const Output& out : flow_.outputs(op)) {
      if (!resident(out.value))
        cached_[out.value] = out.overwrites == kNoValue ? storage_for(out.value) : written.at(out.overwrites);
    }
    for (ValueId v : dead) cached_.erase(v);
    seconds += info(op).seconds;
    ++replayed_ops;
  }

  const StepGraph& graph_;
  const MemoryPlan& plan_;
  const Dataflow flow_;
  Bytes live_;
  bool settled_ = false;
  std::map<ValueId, int> packs_, pending_, consumed_;
  std::map<ValueId, Ref> program_, held_, cached_, unpacked_;

 public:
  Bytes peak;
  double seconds = 0;  ///< of replays
  std::int64_t replayed_ops = 0;
  std::vector<Bytes> timeline;
};

}  // namespace snug::plan::synthetic
