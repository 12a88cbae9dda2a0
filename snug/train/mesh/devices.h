#pragma once

#include "snug/parallel/links.h"

namespace snug::train {

/// What a run would have: one process for each device. The budgets of each are those of the configuration.
struct Devices {
  int count = 1;
  parallel::Links links;
};

}  // namespace snug::train
