#pragma once

#include <algorithm>

#include "snug/base/bytes.h"

namespace snug::plan {

/// How much memory a step may take. A plan fits when its predicted peak and the reserve do.
struct Budget {
  Bytes device = 0;   ///< all memory of the device that LibTorch's allocator maps; must be positive
  Bytes reserve = 0;  ///< for what the allocator maps beyond its blocks: partly filled pages of small ones

  [[nodiscard]] Bytes for_blocks() const { return device - reserve; }

  /// The budget under a hard limit of an allocator, with the reserve that its small blocks need.
  static Budget for_limit(Bytes limit) { return {limit, std::min<Bytes>(limit / 32, 2_MiB)}; }
};

}  // namespace snug::plan
