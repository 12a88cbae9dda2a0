#pragma once

#include <vector>

#include "snug/base/bytes.h"
#include "snug/replay/streamed_tensors.h"

namespace snug::testing {

/// For shards: the host's memory, and a disk.
inline std::vector<StreamOptions> shard_tiers() {
  return {{.host_budget = 1_GiB, .min_bytes = 1_KiB}, {.disk_budget = 1_GiB, .min_bytes = 1_KiB}};
}

}  // namespace snug::testing
