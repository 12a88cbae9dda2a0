#pragma once

namespace snug::replay {

/// After an exception in a backward pass LibTorch's engine leaves the rest of that pass in this thread's queue, with
/// all the memory that it refers to, until a later pass happens to come by. This lets go of it. Not while a backward
/// pass runs on this thread. Accelerators' own queues are not reached.
void release_abandoned_tasks() noexcept;

}  // namespace snug::replay
