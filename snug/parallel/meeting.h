#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace snug::parallel {

/// Finds out at a store which processes meet now: `size` of them, one of each rank, which all call this. Returns the
/// prefix of the keys that are theirs alone. A store may outlive them: torchrun's does, when it starts them again, and
/// has keys of processes that died before they had met. So the process of rank 0 calls, under a new number, and those
/// that are there answer each new call with a number of their own; it tells whose answers count when all have answered.
/// Throws Error, naming ranks as far as they are known, when that takes longer than `timeout`; and as the store does,
/// when it cannot be reached.
std::string meet_at(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);

}  // namespace snug::parallel
