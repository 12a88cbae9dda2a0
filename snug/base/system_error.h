#pragma once

#include <system_error>

namespace snug {

/// Throws what the system says of a value of errno.
[[noreturn]] inline void throw_system_error(int error) { throw std::system_error(error, std::generic_category()); }

}  // namespace snug
