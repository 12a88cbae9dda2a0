#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace snug::parallel {

/// Collectives of tensors on accelerators by a backend for those of the CPU, for devices that have none of their own
/// here, or that several processes share: what is sent is copied to the host first, when all streams of the device have
/// done what they had to do, and what has come is copied to its place by whoever waits for it, who is then as far as
/// the copy is. Those that snug does: all-reduce, broadcast, reduce-scatter, sends and receives.
c10::intrusive_ptr<c10d::Backend> through_host(c10::intrusive_ptr<c10d::Backend> of_host);

}  // namespace snug::parallel
