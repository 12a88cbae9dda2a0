#pragma once

#include <cstdint>
#include <string>

namespace snug::report {

/// "139.4 M", "4.88 M", "44.4 K", "512": in thousands, millions or billions, three or more digits.
std::string format_count(std::int64_t count);

/// " (50 %)", to stand behind an amount: how much of `whole` it is, with that many digits; nothing of a whole of 0.
std::string format_share(std::int64_t part, std::int64_t whole, int digits = 0);

}  // namespace snug::report
