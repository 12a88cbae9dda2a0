#pragma once

#include <string>

#include "snug/base/errors.h"

namespace snug::testing {

/// What a call refuses its arguments with; "none" when it does not.
template <class Call>
std::string fault(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace snug::testing
