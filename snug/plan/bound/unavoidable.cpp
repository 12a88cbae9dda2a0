#include "snug/plan/bound/unavoidable.h"

#include <algorithm>

namespace snug::plan {

std::vector<Bytes> unavoidable_bytes(const StepGraph& graph) {
  std::vector<char> unpacked(graph.values.size(), 0);  // by a node that is not done yet
  std::vector<char> alive(graph.values.size(), 0);     // for the program
  const auto counted = [&](ValueId v) { return alive[at(v)] || unpacked[at(v)]; };
  std::vector<Bytes> result;
  result.reserve(graph.events.size());
  Bytes level = graph.static_bytes;
  const auto change = [&](ValueId v, auto&& edit) {
    const bool before = counted(v);
    edit();
    if (counted(v) != before) level += before ? -graph.values[at(v)].bytes : graph.values[at(v)].bytes;
  };
  for (const Event& e : graph.events) {
    Bytes highest = level;
    switch (e.kind) {
      case Event::Kind::Run: {
        const OpInfo& info = graph.ops[at(e.id)];
        highest += info.peak_bytes;
        level += info.other_bytes;
        for (const Output& out : graph.flow.outputs(e.id)) {
          if (out.overwrites != kNoValue) change(out.overwrites, [&] { alive[at(out.overwrites)] = 0; });
          change(out.value, [&] { alive[at(out.value)] = 1; });
        }
        break;
      }
      case Event::Kind::Die:
        // What cannot be made again stays.
        if (!graph.flow.is_leaf(e.id)) change(e.id, [&] { alive[at(e.id)] = 0; });
        break;
      case Event::Kind::Unpack:
        change(e.id, [&] { unpacked[at(e.id)] = 1; });
        break;
      case Event::Kind::Release:
        // A node that saved a value twice is done with both.
        change(e.id, [&] { unpacked[at(e.id)] = 0; });
        break;
      case Event::Kind::Other:
        highest += e.peak;
        level += e.net;
        break;
      case Event::Kind::Save:
      case Event::Kind::Settle:
        break;
    }
    result.push_back(std::max(highest, level));
  }
  return result;
}

}  // namespace snug::plan
