#pragma once

#include <fnmatch.h>

#include <string>

namespace snug {

/// Whether a shell's pattern (* is any text, ? any character, [ab] one of some) is of the name, or of its end behind a
/// dot: "q_proj" is of "blocks.0.q_proj".
inline bool name_matches(const std::string& pattern, const std::string& name) {
  for (std::size_t begin = 0; begin != std::string::npos;) {
    if (fnmatch(pattern.c_str(), name.c_str() + begin, FNM_NOESCAPE) == 0) return true;
    const std::size_t dot = name.find('.', begin);
    begin = dot == std::string::npos ? dot : dot + 1;
  }
  return false;
}

}  // namespace snug
