#pragma once

#include <vector>

#include "snug/replay/agreement.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// What processes of a group have recorded of the same steps becomes the same in all of them, so that they make the
/// same plans of it within the same budgets: times are the first process's, and what there is beside the steps, and
/// beside their values, is the most of all. Where one of them has recorded other operators, each keeps its own, and
/// false is returned, in all: then, for a process alone, and where others than those of the group do collectives with
/// one of them, what is made together is kept by all plans. Throws GroupEnded where one of them has failed.
bool agree_on(std::vector<RecordedStep>& kinds, Agreement& group);

}  // namespace snug::replay
