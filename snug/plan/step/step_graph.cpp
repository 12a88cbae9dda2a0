#include "snug/plan/step/step_graph.h"

#include <algorithm>

#include "snug/base/hash.h"

namespace snug::plan {

void StepGraph::take_shorter_times(const StepGraph& other) {
  for (std::size_t i = 0; i < ops.size(); ++i) ops[i].seconds = std::min(ops[i].seconds, other.ops[i].seconds);
  set_step_seconds(std::min(step_seconds, other.step_seconds));
  if (other.update_seconds > 0) update_seconds = std::min(update_seconds, other.update_seconds);
}

void StepGraph::set_step_seconds(double seconds) {
  double sum = 0;
  for (const Event& e : events) sum += e.seconds;
  for (Event& e : events) e.seconds *= sum > 0 ? seconds / sum : 0;
  step_seconds = seconds;
}

std::size_t StepGraph::settle_event() const {
  const auto settle = std::ranges::find(events, Event::Kind::Settle, &Event::kind);
  return static_cast<std::size_t>(settle - events.begin());
}

std::size_t StepGraph::turn_event() const {
  std::size_t next = std::min(settle_event() + 1, events.size());
  while (next < events.size() && events[next].kind == Event::Kind::Die) ++next;
  return next;
}

std::size_t StepGraph::backward_end() const {
  const std::size_t settle = settle_event();
  for (std::size_t i = events.size(); i > settle; --i) {
    const Event::Kind kind = events[i - 1].kind;
    if (kind == Event::Kind::Unpack || kind == Event::Kind::Release) return i;
  }
  return settle;
}

void StepGraph::add_static(std::size_t device, std::size_t tag, Bytes bytes) {
  (device == 0 ? static_bytes : parts[device - 1].static_bytes) += bytes;
  (device == 0 ? static_by_tag : parts[device - 1].static_by_tag)[tag] += bytes;
}

void StepGraph::end_with_update(const std::vector<Bytes>& bytes, double seconds) {
  events.push_back({Event::Kind::Other, -1, bytes.front(), 0, 0});
  update_bytes = bytes.front();
  update_seconds = seconds;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].update_bytes = i + 1 < bytes.size() ? bytes[i + 1] : 0;
    parts[i].events.push_back({.peak = parts[i].update_bytes, .net = 0});
  }
}

std::vector<Bytes> StepGraph::all_update_bytes() const {
  std::vector<Bytes> all{update_bytes};
  for (const DevicePart& part : parts) all.push_back(part.update_bytes);
  return all;
}

const DevicePart* StepGraph::part_of(std::string_view device) const {
  for (const DevicePart& part : parts) {
    if (devices[static_cast<std::size_t>(part.device)] == device) return &part;
  }
  return nullptr;
}

std::uint64_t StepGraph::fingerprint() const {
  std::vector<std::uint64_t> signatures;
  signatures.reserve(ops.size());
  for (const OpInfo& op : ops) signatures.push_back(op.signature);
  return fingerprint_of(signatures);
}

std::uint64_t fingerprint_of(std::span<const std::uint64_t> signatures) { return hash_64(std::as_bytes(signatures)); }

}  // namespace snug::plan
