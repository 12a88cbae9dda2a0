#pragma once

#include <vector>

#include "snug/replay/streamed_tensors.h"

namespace snug::testing {

/// Where tensors are streamed from: the host, the disk, or what the host has no room for from the disk.
inline std::vector<StreamOptions> all_tiers() {
  std::vector<StreamOptions> all{{.host_budget = 1_GiB}, {.disk_budget = 1_GiB}};
  all.push_back({.host_budget = 2_MiB, .disk_budget = 1_GiB});
  return all;
}

}  // namespace snug::testing
