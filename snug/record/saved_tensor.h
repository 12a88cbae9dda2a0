#pragma once

#include <c10/core/Storage.h>

#include <cstdint>

#include "snug/record/seen_version.h"
#include "snug/record/view.h"

namespace snug::record {

/// What backward gets for a saved tensor: the contents of its value, or those that a lossy codec has left (ImageStore).
enum class StandsFor : std::uint8_t { Value, Image };

/// What a saved-tensor hook packed: a view of a value, bound to the version that stands when the operator around the
/// pack has finished.
struct SavedTensor {
  View view;
  c10::Storage storage;     // until it is bound
  c10::Storage handed_out;  // to a node, and no longer on the tape: there until the node is released, as all others are
  SeenVersion version;      // when it was packed
  bool bound = false;
  StandsFor stands_for = StandsFor::Value;
};

}  // namespace snug::record
