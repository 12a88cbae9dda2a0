#pragma once

#include <cstdint>
#include <string>

namespace snug::report {

/// "139.4 M", "4.88 M", "44.4 K", "512": in thousands, millions or billions, three or more digits.
std::string format_count(std::int64_t count);

}  // namespace snug::report
