#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace snug {

/// The known name that `wrong` was most likely meant to be, for "did you mean": the smallest Damerau-Levenshtein
/// distance (insert, delete, replace, swap of neighbours; bytes, case counts), the first of equals. When even the
/// nearest is more than max(2, length of wrong / 3) edits away, or has not one letter left in common, the shortest name
/// that begins with the three letters or more of `wrong` ("adam8bit" for "adam8"), or none.
std::optional<std::string> nearest_name(std::string_view wrong, std::span<const std::string> known);

/// The same as the words of a message, with a blank behind: did you mean "..."? Empty for none.
std::string did_you_mean(std::string_view wrong, std::span<const std::string> known);

}  // namespace snug
