#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace snug {

/// A number of bytes. Signed, so that differences are bytes too.
using Bytes = std::int64_t;

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return static_cast<Bytes>(n); }
constexpr Bytes operator""_KiB(unsigned long long n) { return static_cast<Bytes>(n) << 10; }
constexpr Bytes operator""_MiB(unsigned long long n) { return static_cast<Bytes>(n) << 20; }
constexpr Bytes operator""_GiB(unsigned long long n) { return static_cast<Bytes>(n) << 30; }
}  // namespace literals

/// Reads "8GiB", "400 MiB", "1.5e9", "512k": a non-negative number and an optional unit. KiB, MiB, GiB, TiB and the
/// bare letters k, m, g, t are powers of 1024; kB, MB, GB, TB are powers of 1000; no unit or "B" is bytes. Case and
/// inner spaces do not matter. Throws UsageError naming the text when it is none of these or does not fit 63 bits.
Bytes parse_bytes(std::string_view text);

/// "412.3 MiB": the largest binary unit that leaves at least 1, one decimal; whole bytes below 1 KiB.
std::string format_bytes(Bytes bytes);

}  // namespace snug
