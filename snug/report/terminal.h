#pragma once

#include <cstdio>
#include <optional>

namespace snug::report {

/// How many columns the terminal has that `file` writes to: those that COLUMNS says where it is a positive number,
/// else the terminal's own, else 80. None where it is no terminal.
std::optional<int> terminal_columns(std::FILE* file);

}  // namespace snug::report
