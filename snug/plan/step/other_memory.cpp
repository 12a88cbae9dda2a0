#include "snug/plan/step/other_memory.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

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

/// A graph's events, with others put in between: all at once, as each insertion into a vector moves what is behind it.
class Rewritten {
 public:
  explicit Rewritten(StepGraph& graph) : graph_(graph) { events_.reserve(graph.events.size()); }

  Event& take(std::size_t position) {
    from_.push_back(position);
    return events_.emplace_back(graph_.events[position]);
  }
  /// In front of that event.
  Event& insert(std::size_t position) {
    inserted_.push_back(position);
    from_.push_back(kNew);
    return events_.emplace_back();
  }
  void apply() {
    if (!inserted_.empty()) {
      for (DevicePart& part : graph_.parts) part.events = as_here(part.events);
    }
    graph_.events = std::move(events_);
  }

 private:
  static constexpr std::size_t kNew = static_cast<std::size_t>(-1);

  [[nodiscard]] std::vector<DevicePart::Taken> as_here(const std::vector<DevicePart::Taken>& taken) const {
    std::vector<DevicePart::Taken> here;
    here.reserve(from_.size());
    auto inserted = inserted_.begin();
    for (const std::size_t from : from_) {
      if (from == kNew) {
        if (*inserted++ <= taken.size()) here.emplace_back();
      } else if (from < taken.size()) {
        here.push_back(taken[from]);
      }
    }
    return here;
  }

  StepGraph& graph_;
  std::vector<Event> events_;
  std::vector<std::size_t> from_;      // positions in the graph's events, or kNew
  std::vector<std::size_t> inserted_;  // what each new one is in front of
};

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
  Rewritten events(graph);
  // Of all of a gap, in its first event, or in one that there was not.
  const auto say = [&](Event& event) {
    if (gap >= memory.ends.size()) throw std::logic_error("plan: a step with more gaps than memory is known of");
    event.peak = std::max<Bytes>(memory.peaks[gap] - there, 0);
    event.net = memory.ends[gap] - there;
    is_said = true;
  };
  const auto end_gap = [&](std::size_t position) {
    if (gap >= memory.ends.size()) throw std::logic_error("plan: a step with more gaps than memory is known of");
    if (!is_said && (memory.ends[gap] != there || memory.peaks[gap] > there)) say(events.insert(position));
    there = memory.ends[gap++];
    is_said = false;
  };
  const std::size_t count = events_before_update(graph);
  for (std::size_t i = 0; i < count; ++i) {
    if (graph.events[i].kind != Event::Kind::Other) {
      end_gap(i);
      events.take(i);
    } else if (is_said) {
      Event& event = events.take(i);
      event.peak = event.net = 0;
    } else {
      say(events.take(i));
    }
  }
  end_gap(count);
  if (gap != memory.ends.size()) throw std::logic_error("plan: a step with fewer gaps than memory is known of");
  if (count < graph.events.size()) {
    graph.update_bytes = std::max<Bytes>(memory.update - there, 0);
    events.take(count).peak = graph.update_bytes;
  }
  events.apply();
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
