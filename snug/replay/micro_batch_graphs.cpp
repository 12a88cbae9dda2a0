#include "snug/replay/micro_batch_graphs.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "snug/memory/tag.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/several_stages.h"
#include "snug/replay/gradient_bytes.h"

namespace snug::replay {
namespace {

/// Than another of them: of no kind more.
bool is_less(const std::vector<std::int32_t>& count, const std::set<std::vector<std::int32_t>>& all) {
  return std::ranges::any_of(all, [&](const std::vector<std::int32_t>& other) {
    return other != count && std::ranges::equal(count, other, std::ranges::less_equal());
  });
}

}  // namespace

void MicroBatchGraphs::sample(const std::vector<at::Tensor>& parameters) {
  Sample sample;
  const std::vector<memory::DeviceMemory*>& devices = scope_.devices();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    sample.outside.push_back(devices[i]->stats().allocated - scope_.not_of_steps()[i] - scope_.held(i));
    sample.gradients.push_back(gradient_bytes(parameters, *devices[i]));
    sample.by_tag.push_back(devices[i]->stats().by_tag);
  }
  samples_.push_back(std::move(sample));
}

void MicroBatchGraphs::went_forward(const record::Tape& tape, int stage) {
  const Id id = fingerprints_.size();
  fingerprints_.push_back(plan::fingerprint_of(tape.calls().signatures()));
  stages_.push_back(stage);
  ids_[&tape] = id;
  open_.push_back(id);
  at_once_.push_back({id, open_});
}

void MicroBatchGraphs::went_backward(const record::Tape& tape) {
  const Id id = ids_.at(&tape);
  at_once_.push_back({id, open_});
  std::erase(open_, id);
}

void MicroBatchGraphs::add(const record::Tape& tape, plan::StepGraph graph) {
  noted_.push_back({std::move(graph), noted_.empty()});
  ids_.erase(&tape);
}

void MicroBatchGraphs::set_in_flight(std::vector<plan::StepGraph>& kinds) const {
  std::vector<std::size_t> kind_of;  // or their number
  for (const std::uint64_t fingerprint : fingerprints_) {
    const auto kind = std::ranges::find(kinds, fingerprint, &plan::StepGraph::fingerprint);
    kind_of.push_back(static_cast<std::size_t>(kind - kinds.begin()));
  }
  std::vector<std::set<std::vector<std::int32_t>>> counts(kinds.size() + 1);  // of each kind, by the one that runs
  for (const AtOnce& at_once : at_once_) {
    std::vector<std::int32_t> count(kinds.size() + 1, 0);
    for (const Id id : at_once.in_flight) ++count[kind_of[id]];
    counts[kind_of[at_once.runs]].insert(std::move(count));
  }
  for (Id id = 0; id < stages_.size(); ++id) {
    if (kind_of[id] == kinds.size()) continue;
    std::vector<std::int32_t>& stages = kinds[kind_of[id]].stages;
    if (std::ranges::find(stages, stages_[id]) == stages.end()) stages.push_back(stages_[id]);
  }
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    kinds[kind].in_flight = 1;
    for (const std::vector<std::int32_t>& count : counts[kind]) {
      kinds[kind].in_flight = std::max(kinds[kind].in_flight, count[kind]);
      if (kinds.size() == 1 || is_less(count, counts[kind])) continue;
      std::vector<plan::InFlight>& with = kinds[kind].in_flight_with.emplace_back();
      for (std::size_t i = 0; i < kinds.size(); ++i) with.push_back({kinds[i].fingerprint(), count[i]});
    }
  }
}

void MicroBatchGraphs::note_gradients(const std::vector<at::Tensor>& with_gradients) {
  gradients_.clear();
  for (std::size_t i = 0; i < scope_.devices().size(); ++i) {
    gradients_.push_back(gradient_bytes(with_gradients, *scope_.devices()[i]));
    // What has been handed in to others by now was there.
    for (const Sample& sample : samples_) gradients_.back() = std::max(gradients_.back(), sample.gradients[i]);
  }
}

void MicroBatchGraphs::finish(RecordedStep& step, const std::vector<Bytes>& state_to_come) {
  step.kind = StepKind::MicroBatch;
  std::vector<plan::StepGraph> kinds;  // the last first
  std::vector<char> makes_gradients;   // which no other one of it finds
  for (auto one = noted_.rbegin(); one != noted_.rend(); ++one) {
    const std::uint64_t fingerprint = one->graph.fingerprint();
    const auto known = std::ranges::find(kinds, fingerprint, &plan::StepGraph::fingerprint);
    if (known != kinds.end()) {
      known->take_shorter_times(one->graph);
      continue;
    }
    kinds.push_back(one->graph);
    makes_gradients.push_back(one->makes_gradients ? 1 : 0);
  }
  set_in_flight(kinds);
  const plan::StepGraph& last = kinds.front();
  for (std::size_t i = 1; i < kinds.size() && last.update_seconds > 0; ++i)
    kinds[i].end_with_update(last.all_update_bytes(), last.update_seconds);
  for (std::size_t device = 0; device < scope_.devices().size(); ++device) {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      set_static(kinds[i], device, makes_gradients[i] != 0 ? 0 : gradients_[device]);
      kinds[i].add_static(device, static_cast<std::size_t>(memory::Tag::Optimizer), state_to_come[device]);
    }
    step.passing[device].beside =
        static_bytes(device, makes_gradients.front() != 0 ? 0 : gradients_[device]) - samples_.front().outside[device];
  }
  if (kinds.size() > 1) {
    std::vector<plan::StepGraph*> all;
    for (plan::StepGraph& graph : kinds) all.push_back(&graph);
    plan::keep_everything(all);
    // Budgets are shares of the first one's.
    std::ranges::stable_sort(kinds, std::ranges::greater(),
                             [](const plan::StepGraph& graph) { return plan::plan_none(graph).predicted_peak; });
  }
  step.graph = std::move(kinds.front());
  step.further.assign(std::make_move_iterator(kinds.begin() + 1), std::make_move_iterator(kinds.end()));
}

Bytes MicroBatchGraphs::static_bytes(std::size_t device, Bytes gradients) const {
  Bytes most = 0;
  for (const Sample& sample : samples_)
    most = std::max(most, sample.outside[device] + gradients - sample.gradients[device]);
  return most;
}

void MicroBatchGraphs::set_static(plan::StepGraph& graph, std::size_t device, Bytes gradients) const {
  // As it was in front of the first of them, and what has come since.
  const Bytes there = samples_.front().outside[device];
  (device == 0 ? graph.static_bytes : graph.parts[device - 1].static_bytes) = there;
  (device == 0 ? graph.static_by_tag : graph.parts[device - 1].static_by_tag) = samples_.front().by_tag[device];
  const Bytes before = samples_.front().gradients[device];
  graph.add_static(device, static_cast<std::size_t>(memory::Tag::Gradients), gradients - before);
  graph.add_static(device, static_cast<std::size_t>(memory::Tag::Staging),
                   static_bytes(device, gradients) - there - gradients + before);
}

}  // namespace snug::replay
