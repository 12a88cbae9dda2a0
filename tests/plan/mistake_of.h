#pragma once

#include <functional>
#include <string>

#include "snug/base/errors.h"

namespace snug::plan {

/// What a UsageError says that `make` throws; "none" when it throws none.
inline std::string mistake_of(const std::function<void()>& make) {
  try {
    make();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace snug::plan
