#pragma once

#include <fmt/format.h>

#include <string_view>

#include "snug/base/errors.h"

namespace snug {

/// What `read()` returns; a UsageError out of it names `where` in front, as a key or an option.
template <class Read>
auto read_at(std::string_view where, const Read& read) {
  try {
    return read();
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", where, error.what()));
  }
}

}  // namespace snug
