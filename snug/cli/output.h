#pragma once

#include <string_view>

namespace snug::cli {

/// Adds to standard output. A failure is remembered and not reported here, so that what runs comes to its end first.
void print(std::string_view text);

/// Puts what was printed on its way. Throws Error with the reason that the system gave when any of it could not be
/// written: main() does this once at the end, and what shows its text piece by piece after each.
void flush_output();

}  // namespace snug::cli
