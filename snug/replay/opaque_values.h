#pragma once

#include <string>
#include <vector>

#include "snug/record/tape.h"

namespace snug::replay {

/// A line for each value of the tape that is kept because no recorded operator filled it: what it is, and how it could
/// be made again.
std::vector<std::string> opaque_lines(const record::Tape& tape);

}  // namespace snug::replay
