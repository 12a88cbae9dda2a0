#pragma once

#include <string_view>

#include "snug/cli/command.h"
#include "snug/train/largest.h"

namespace snug::cli {

/// What a value of --largest names; throws UsageError for another one.
train::Extent extent_named(std::string_view name);

/// `snug plan --largest`: returns the exit code.
int find_largest(const ConfigOptions& options, train::Extent extent);

}  // namespace snug::cli
