#pragma once

#include <string>

namespace snug::parallel {

/// Before `more` files, sockets or the like are opened: raises the limit of this process (RLIMIT_NOFILE) to what they
/// need, if the hard limit allows it. Throws UsageError, saying what for, where it does not. Any thread.
void allow_open_files(int more, const std::string& what);

}  // namespace snug::parallel
