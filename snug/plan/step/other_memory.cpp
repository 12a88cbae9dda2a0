#include "snug/plan/step/other_memory.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>

#include "snug/base/hash.h"

namespace snug::plan {
namespace {

/// The event of StepGraph::end_with_update() is no part of a gap.
std::size_t events_before_update(const StepGraph& graph) {
  const bool has_one = graph.update_seconds > 0 && !graph.events.empty() &&
                       graph.events.back().kind == Event::Kind::Other && graph.events.back().net == 0 &&
                       graph.events.back().peak == graph.update_bytes;
  return graph.events.size() - (has_one ? 1 : 0);
}

void insert_event(StepGraph& graph, std::size_t position) {
  const auto offset = static_cast<std::ptrdiff_t>(position);
  graph.events.insert(graph.events.begin() + offset, Event{});
  for (DevicePart& part : graph.parts) {
    if (position <= part.events.size()) part.events.insert(part.events.begin() + offset, DevicePart::Taken{});
  }
}

}  // namespace

OtherMemory other_memory_of(const StepGraph& graph) {
  OtherMemory memory;
  Bytes there = graph.static_bytes, most = there;
  const auto end_gap = [&] {
    memory.ends.push_back(there);
    memory.peaks.push_back(most);
    most = there;
  };
  const std::size_t count = events_before_update(graph);
  for (std::size_t i = 0; i < count; ++i) {
    const Event& event = graph.events[i];
    if (event.kind != Event::Kind::Other) {
      end_gap();
      continue;
    }
    most = std::max(most, there + event.peak);
    there += event.net;
  }
  most = std::max(most, there);
  end_gap();
  if (count < graph.events.size()) memory.update = there + graph.update_bytes;
  return memory;
}

void set_other_memory(StepGraph& graph, const OtherMemory& memory) {
  Bytes there = graph.static_bytes;
  std::size_t gap = 0;
  bool is_said = false;  // of this gap
  // Of all of a gap, in its first event, or in one that there was not.
  const auto say = [&](std::size_t position) {
    if (gap >= memory.ends.size()) throw std::logic_error("plan: a step with more gaps than memory is known of");
    Event& event = graph.events[position];
    event.peak = std::max<Bytes>(memory.peaks[gap] - there, 0);
    event.net = memory.ends[gap] - there;
    is_said = true;
  };
  const auto end_gap = [&](std::size_t& position) {
    if (gap >= memory.ends.size()) throw std::logic_error("plan: a step with more gaps than memory is known of");
    if (!is_said && (memory.ends[gap] != there || memory.peaks[gap] > there)) {
      insert_event(graph, position);
      say(position++);
    }
    there = memory.ends[gap++];
    is_said = false;
  };
  const bool has_update = events_before_update(graph) < graph.events.size();
  std::size_t i = 0;
  for (; i + (has_update ? 1 : 0) < graph.events.size(); ++i) {
    if (graph.events[i].kind != Event::Kind::Other) {
      end_gap(i);
    } else if (is_said) {
      graph.events[i].peak = graph.events[i].net = 0;
    } else {
      say(i);
    }
  }
  end_gap(i);
  if (gap != memory.ends.size()) throw std::logic_error("plan: a step with fewer gaps than memory is known of");
  if (!has_update) return;
  graph.update_bytes = std::max<Bytes>(memory.update - there, 0);
  graph.events.back().peak = graph.update_bytes;
}

std::uint64_t hash_of_uses(const StepGraph& graph) {
  std::vector<std::int32_t> uses;
  for (const Event& event : graph.events) {
    if (event.kind == Event::Kind::Other) continue;
    uses.push_back(static_cast<std::int32_t>(event.kind));
    uses.push_back(event.id);
  }
  return hash_64(std::as_bytes(std::span(uses)));
}

}  // namespace snug::plan
