#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace snug {

/// A number that is finite and not negative, with one of these units behind it, as they are written; blanks between the
/// two do not matter. The number times the unit's; nullopt for another text.
std::optional<double> read_quantity(std::string_view text, std::span<const std::pair<std::string_view, double>> units);

/// "400Gbps", "2.5TBps", "1GiB/s": what passes in a second, in bytes. Bits (bps) and bytes (Bps, B/s); k, M, G and T
/// are powers of 1000, Ki, Mi, Gi and Ti of 1024. nullopt for another text.
std::optional<double> read_rate(std::string_view text);

}  // namespace snug
