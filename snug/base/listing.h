#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace snug {

/// The first eight, and how many more there are: for errors that name all faults at once and stay one line.
std::string listed(const std::vector<std::string>& items, std::string_view separator = ", ");

}  // namespace snug
