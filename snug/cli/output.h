#pragma once

#include <string>
#include <string_view>

namespace snug::cli {

/// Adds to standard output. A failure is remembered and not reported here, so that what runs comes to its end first.
void print(std::string_view text);

/// Throws UsageError, naming the option, where a file of that path can be neither made nor written.
void check_can_be_written(std::string_view option, const std::string& path);

/// Puts what was printed on its way. Throws Error with the reason that the system gave when any of it could not be
/// written: main() does this once at the end, and what shows its text piece by piece after each.
void flush_output();

}  // namespace snug::cli
