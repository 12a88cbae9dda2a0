#pragma once

#include <cstddef>
#include <vector>

#include "snug/plan/step/action.h"
#include "snug/plan/step/ids.h"
#include "snug/plan/step/saves.h"
#include "snug/plan/step/step_graph.h"

namespace snug::record {
class Tape;

/// Which values of a recorded step may be left to a lossy codec, as far as operators go: those of fp32 or bf16 that
/// were saved by operators whose backward does well with numbers so near. One that divides by them, takes their
/// logarithm or compares them with others does not, and nor does any that is not known here, as functions that
/// differentiate for themselves. Nor may what backward asked for before the forward pass was over: it would reach the
/// loss.
class LossyValues {
 public:
  /// `events`: what has happened so far, to the end of the forward pass. The tape must outlive this.
  LossyValues(const Tape& tape, const std::vector<plan::Event>& events, plan::Codec codec);

  /// Output number `output` of an operator.
  [[nodiscard]] bool allows(plan::OpId op, std::size_t output) const;

 private:
  void note(const plan::SavedBetween& saved);

  const Tape& tape_;
  plan::Codec codec_;
  std::vector<char> saved_by_known_, refused_;  // by value
};

}  // namespace snug::record
