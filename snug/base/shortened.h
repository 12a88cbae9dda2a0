#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace snug {

/// A text of at most so many bytes as it is; of a longer one so many at most, up to the end of a character of UTF-8,
/// and dots.
inline std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return std::string(text.substr(0, most)) + "...";
}

}  // namespace snug
