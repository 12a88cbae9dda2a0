#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "snug/plan/step/step_graph.h"
#include "snug/record/tape.h"
#include "snug/replay/record_step.h"
#include "snug/replay/recording_scope.h"

namespace snug::replay {

/// What becomes of the graphs of a recorded step's micro-batches: one of each kind, which knows how many of it are in
/// flight at once. What is there beside them, as gradients and what is under way between processes, is static memory of
/// all, as it is where most of it is.
class MicroBatchGraphs {
 public:
  /// `scope` must outlive this.
  explicit MicroBatchGraphs(RecordingScope& scope) : scope_(scope) {}

  /// Notes what is there beside them now.
  void sample(const std::vector<at::Tensor>& parameters);
  void went_forward(const record::Tape& tape, int stage);
  void went_backward(const record::Tape& tape);
  /// Of these parameters, in front of an update, which may let go of them.
  void note_gradients(const std::vector<at::Tensor>& with_gradients);
  [[nodiscard]] bool empty() const noexcept { return noted_.empty(); }
  /// One that has gone backward with another, of which nobody knows what it takes by itself.
  void forget(const record::Tape& tape) { ids_.erase(&tape); }
  /// What one was that has gone backward.
  void add(const record::Tape& tape, plan::StepGraph graph);
  /// All have been added, the one last whose end the update is. `state_to_come`: that this makes, by device.
  void finish(RecordedStep& step, const std::vector<Bytes>& state_to_come);

 private:
  using Id = std::size_t;  // in the order of their forward passes
  struct Sample {
    std::vector<Bytes> outside, gradients;  // by device
    std::vector<memory::ByTag> by_tag;
  };
  struct Noted {
    plan::StepGraph graph;
    bool makes_gradients;  // the first that has gone backward
  };
  void set_in_flight(std::vector<plan::StepGraph>& kinds) const;
  /// By their end they have these gradients of a device.
  void set_static(plan::StepGraph& graph, std::size_t device, Bytes gradients) const;
  [[nodiscard]] Bytes static_bytes(std::size_t device, Bytes gradients) const;

  RecordingScope& scope_;
  std::vector<Sample> samples_;
  std::map<const record::Tape*, Id> ids_;
  std::vector<std::uint64_t> fingerprints_;  // by id
  std::vector<std::int32_t> stages_;         // by id
  std::vector<Bytes> gradients_;             // in front of the update, or the most before, by device
  std::vector<Id> open_;
  struct AtOnce {
    Id runs;
    std::vector<Id> in_flight;
  };
  std::vector<AtOnce> at_once_;  // at each end of a forward pass, and each beginning of a backward pass
  std::vector<Noted> noted_;
};

}  // namespace snug::replay
