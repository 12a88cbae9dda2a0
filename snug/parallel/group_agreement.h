#pragma once

#include <memory>

#include "snug/base/agreement.h"
#include "snug/parallel/process_group.h"

namespace snug::parallel {

/// The agreement of a group's processes: an all-gather of a byte for each vote, a broadcast or an all-reduce for what
/// they plan with. For FitOptions::agreement.
std::shared_ptr<Agreement> agreement_of(std::shared_ptr<ProcessGroup> group);

}  // namespace snug::parallel
