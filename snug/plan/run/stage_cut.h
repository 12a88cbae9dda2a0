#pragma once

#include <vector>

namespace snug::plan {

/// Cuts a row of blocks into stages of a pipeline, of blocks that follow each other, so that the one that takes longest
/// takes as little as it can, and the others, where there is a choice, have as many blocks as it leaves them, the last
/// stages fewer. `before`: what the first stage does in front of its blocks, and `behind` the last one behind its own,
/// as the output projection and the loss are. Returns the number of blocks of each stage, one at least. Throws
/// UsageError for more stages than blocks, or none.
std::vector<int> cut_into_stages(const std::vector<double>& block_seconds, int stages, double before, double behind);

}  // namespace snug::plan
