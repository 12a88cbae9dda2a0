#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "snug/replay/planned_step.h"

namespace snug::train {

inline replay::StepKind kind_of(const replay::RecordedStep& step) { return step.kind; }
inline replay::StepKind kind_of(const replay::PlannedStep& planned) { return planned.step.kind; }

/// Seconds of all `parts` micro-batches of a step, without the update, where `of_kind(i)` are those of one as kinds[i]
/// is: kinds[0] is that of the last, and of the others too where there is none of their kind.
template <class Kind, class OfKind>
double whole_step_seconds(const std::vector<Kind>& kinds, std::int64_t parts, const OfKind& of_kind) {
  const auto of = [&](replay::StepKind kind) {
    const auto found = std::ranges::find(kinds, kind, [](const Kind& one) { return kind_of(one); });
    return of_kind(found == kinds.end() ? 0 : static_cast<std::size_t>(found - kinds.begin()));
  };
  double seconds = of_kind(0);
  if (parts > 1) seconds += of(replay::StepKind::First);
  if (parts > 2) seconds += static_cast<double>(parts - 2) * of(replay::StepKind::Later);
  return seconds;
}

}  // namespace snug::train
