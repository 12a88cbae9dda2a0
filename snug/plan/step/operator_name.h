#pragma once

#include <string_view>

namespace snug::plan {

/// Whether an operator's full name is the one that somebody wrote. Without an overload all of them are meant:
/// "aten::add" is "aten::add.Tensor" too.
[[nodiscard]] inline bool names_operator(std::string_view written, std::string_view full) {
  return full.starts_with(written) && (full.size() == written.size() || full[written.size()] == '.');
}

}  // namespace snug::plan
