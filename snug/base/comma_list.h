#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

/// Without the blanks and ends of lines around it.
std::string_view trimmed(std::string_view text);

/// The parts between a text's commas, but for those in parentheses, trimmed: one more than commas, so one for an empty
/// text.
std::vector<std::string> split_at_commas(std::string_view text);

}  // namespace snug
