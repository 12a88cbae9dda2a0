#pragma once

#include <cstdint>
#include <vector>

#include "snug/replay/planned_step.h"

namespace snug::train {

inline replay::StepKind kind_of(const replay::RecordedStep& step) { return step.kind; }
inline replay::StepKind kind_of(const replay::PlannedStep& planned) { return planned.step.kind; }

/// Seconds of all `parts` micro-batches of a step, without the update, where `of_kind(i)` are those of one as kinds[i]
/// is: kinds[0] is of one that adds to gradients, and kinds[1], where there is such a kind, of the one that makes them.
template <class Kind, class OfKind>
double whole_step_seconds(const std::vector<Kind>& kinds, std::int64_t parts, const OfKind& of_kind) {
  if (parts <= 1) return of_kind(0);
  const bool has_first = kinds.size() > 1 && kind_of(kinds[1]) == replay::StepKind::First;
  return of_kind(has_first ? 1 : 0) + static_cast<double>(parts - 1) * of_kind(0);
}

}  // namespace snug::train
