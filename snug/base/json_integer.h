#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "snug/base/errors.h"

namespace snug {

/// An integer that a file is to have there. nlohmann's own get() takes any number, and one that does not fit without a
/// word. Throws UsageError.
template <std::integral T, class Json>
T json_integer(const Json& json) {
  if (json.is_number_unsigned()) {
    if (const auto value = json.template get<std::uint64_t>(); std::in_range<T>(value)) return static_cast<T>(value);
  } else if (json.is_number_integer()) {
    if (const auto value = json.template get<std::int64_t>(); std::in_range<T>(value)) return static_cast<T>(value);
  }
  throw UsageError(fmt::format("{} stands where an integer from {} to {} is wanted",
                               json.is_number() ? json.dump() : std::string(json.type_name()),
                               std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

}  // namespace snug
