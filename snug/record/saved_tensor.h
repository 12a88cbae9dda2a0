#pragma once

#include <c10/core/Storage.h>

#include "snug/record/seen_version.h"
#include "snug/record/view.h"

namespace snug::record {

/// What a saved-tensor hook packed: a view of a value, bound to the version that stands when the operator around the
/// pack has finished.
struct SavedTensor {
  View view;
  c10::Storage storage;  // until it is bound
  SeenVersion version;   // when it was packed
  bool bound = false;
  bool of_image = false;  // it stands for the value's image
};

}  // namespace snug::record
