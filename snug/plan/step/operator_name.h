#pragma once

#include <string_view>

namespace snug::plan {

/// Whether an operator's full name is the one that somebody wrote. Without an overload all of them are meant:
/// "aten::add" is "aten::add.Tensor" too.
[[nodiscard]] inline bool names_operator(std::string_view written, std::string_view full) {
  return full.starts_with(written) && (full.size() == written.size() || full[written.size()] == '.');
}

/// "aten::add" of "aten::add.Tensor".
[[nodiscard]] inline std::string_view without_overload(std::string_view full) { return full.substr(0, full.find('.')); }

}  // namespace snug::plan
