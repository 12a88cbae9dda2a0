#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "snug/ops/tensor_group.h"
#include "snug/parallel/process_group.h"

namespace snug::parallel {

/// What layers in parts do together, by collectives of that group. A plan may have all processes do some of them again
/// in the backward pass, where they have made it together: with an agreement (fit()) of all of them.
std::shared_ptr<ops::TensorGroup> tensor_group(std::shared_ptr<ProcessGroup> group);

/// How many there are.
[[nodiscard]] std::size_t tensor_groups();
/// Who waits for this process in a collective of one of them fails at once.
void end_tensor_groups() noexcept;

/// Whether the members of all groups that there are of them now are among these.
[[nodiscard]] bool tensor_groups_are_within(const std::vector<int>& members);

}  // namespace snug::parallel
