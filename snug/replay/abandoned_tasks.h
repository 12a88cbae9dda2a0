#pragma once

#include <c10/core/Device.h>

#include <vector>

namespace snug::replay {

/// After an exception in a backward pass LibTorch's engine leaves the rest of that pass in the queues of this thread
/// and of accelerators, with all the memory that it refers to, until a later pass happens to come by, and an
/// accelerator's thread may still be in the middle of a node. This lets go of the one and waits for the other.
/// `devices`: the accelerators that took part. Not while a backward pass runs on this thread.
void release_abandoned_tasks(std::vector<c10::Device> devices) noexcept;

}  // namespace snug::replay
