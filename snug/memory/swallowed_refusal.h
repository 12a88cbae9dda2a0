#pragma once

#include <optional>

#include "snug/memory/out_of_budget.h"

// LibTorch's products of matrices on the CPU catch whatever oneDNN throws, an allocator's refusal too, and then do
// without oneDNN until the process ends: with other bits, and many times the seconds (mkldnn_matmul in
// ATen/native/LinearAlgebra.cpp). So whoever runs operators under a limit asks afterwards. All of the calling thread.
namespace snug::memory {

/// An allocation is about to be refused.
void note_refusal(const OutOfBudget::Details& details);

/// What was refused so far has come through to somebody: what becomes of oneDNN from here on is not on account of it.
void forget_refusal() noexcept;

/// The latest refusal, if LibTorch has swallowed it, which has oneDNN again from now on. What ran in between counts for
/// nothing.
std::optional<OutOfBudget::Details> take_swallowed_refusal();

/// Refuses once more, if it has been swallowed: see refuse().
void rethrow_swallowed_refusal();

}  // namespace snug::memory
