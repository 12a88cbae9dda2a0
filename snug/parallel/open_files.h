#pragma once

#include <string>

namespace snug::parallel {

/// Makes sure that this process can open `more` further file descriptors: raises the soft limit (RLIMIT_NOFILE) if
/// necessary. Throws UsageError, with `what` they are for, if the hard limit is too low. Any thread.
void allow_open_files(int more, const std::string& what);

}  // namespace snug::parallel
