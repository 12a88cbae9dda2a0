#pragma once

#include <utility>
#include <variant>
#include <vector>

#include "snug/plan/run/ledger.h"

namespace snug::plan::synthetic {

/// A flow, its ledger, and what was dropped since it was last asked for.
struct Books {
  Dataflow flow;
  std::vector<ValueId> dropped;
  Ledger ledger{flow, [this](ValueId v) { dropped.push_back(v); }};
  ValueId leaf() {
    const ValueId v = flow.add_leaf();
    ledger.hold(v);
    return v;
  }
  ValueId op(const std::vector<ValueId>& inputs, SegmentId segment = kRootSegment) {
    flow.add_op(inputs, segment);
    return flow.add_output();
  }
  ValueId in_place(const std::vector<ValueId>& inputs, ValueId target) {
    flow.add_op(inputs, kRootSegment);
    ledger.lose(target);
    return flow.add_output(target);
  }
  /// As the executor does, without contents.
  ReplaySchedule replay(ValueId target) {
    const ReplaySchedule r = ledger.schedule(target);
    ledger.pin(r);
    for (const ReplaySchedule::Step& step : r.steps) {
      if (const auto* fetch = std::get_if<Fetch>(&step)) {
        ledger.cache(fetch->value);
        continue;
      }
      const RunAgain& run = std::get<RunAgain>(step);
      for (const Output& out : flow.outputs(run.op)) {
        if (!ledger.resident(out.value)) ledger.cache(out.value);
      }
      ledger.finish(run);
    }
    ledger.unpin(r, r.steps.size());
    return r;
  }
  std::vector<ValueId> take_dropped() { return std::exchange(dropped, {}); }
};

inline std::vector<OpId> ops_of(const ReplaySchedule& replay) {
  std::vector<OpId> ops;
  for (const ReplaySchedule::Step& step : replay.steps) {
    if (const auto* run = std::get_if<RunAgain>(&step)) ops.push_back(run->op);
  }
  return ops;
}

inline std::vector<ValueId> fetched_by(const ReplaySchedule& replay) {
  std::vector<ValueId> values;
  for (const ReplaySchedule::Step& step : replay.steps) {
    if (const auto* fetch = std::get_if<Fetch>(&step)) values.push_back(fetch->value);
  }
  return values;
}

inline const RunAgain& run_at(const ReplaySchedule& replay, std::size_t i) {
  return std::get<RunAgain>(replay.steps.at(i));
}

/// leaf -> a -> b -> c, operators 0, 1, 2.
struct Row : Books {
  ValueId l = leaf(), a = op({l}), b = op({a}), c = op({b});
};

}  // namespace snug::plan::synthetic
