#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace snug {

/// ASCII letters alone.
inline std::string in_lower_case(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

}  // namespace snug
