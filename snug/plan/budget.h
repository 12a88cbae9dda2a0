#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::plan {

/// How much memory a step may take. A plan fits when its predicted peak and the reserve do.
struct Budget {
  Bytes limit = 0;    ///< all memory of the device that LibTorch's allocator maps; must be positive
  Bytes reserve = 0;  ///< for what the allocator maps beyond its blocks: partly filled pages of small ones

  [[nodiscard]] Bytes for_blocks() const { return limit - reserve; }

  /// The smallest budget like this one whose blocks hold `peak`: a reserve that for_limit() chose grows with the limit.
  [[nodiscard]] Bytes floor_for(Bytes peak) const {
    if (reserve != for_limit(limit).reserve) return peak + reserve;
    // for_blocks() grows with the limit, by a byte or none per byte: from below, in ever smaller strides.
    Bytes floor = peak;
    for (Bytes missing = peak - for_limit(floor).for_blocks(); missing > 0;
         missing = peak - for_limit(floor).for_blocks()) {
      floor += missing;
    }
    return floor;
  }

  /// The budget under a hard limit of an allocator, with the reserve that its small blocks need: segments that they
  /// fill in part.
  static Budget for_limit(Bytes limit) {
    return {.limit = limit, .reserve = std::min(limit / 2, std::clamp<Bytes>(limit / 32, 256_KiB, 2_MiB))};
  }

  /// A share of what a step takes unplanned, 1 for all of it: the smallest budget whose blocks hold so much. With all
  /// of it everything can be kept, however small the step.
  static Budget for_share(double share, Bytes unplanned_peak) {
    const auto blocks = static_cast<Bytes>(share * static_cast<double>(unplanned_peak));
    return for_limit(for_limit(1).floor_for(blocks));
  }
};

/// The budget of a further device that a step uses, by the name that it has in the step's graph.
struct DeviceLimit {
  std::string device;
  Budget budget;
};

/// Of all devices that a step uses.
struct Budgets {
  Budgets(Budget of_first) : own(of_first) {}             // NOLINT(google-explicit-constructor): most steps use one
  Budgets(std::optional<Budget> of_first = std::nullopt,  // NOLINT(google-explicit-constructor): as above
          std::vector<DeviceLimit> of_others = {})
      : own(of_first), others(std::move(of_others)) {}
  Budgets(std::nullopt_t) {}  // NOLINT(google-explicit-constructor): as above

  std::optional<Budget> own;        ///< of the first; none: no limit
  std::vector<DeviceLimit> others;  ///< those that have none have no limit
};

}  // namespace snug::plan
