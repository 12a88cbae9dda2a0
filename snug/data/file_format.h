#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace snug::data {

/// What a file is that is no text in UTF-8, such as "gzip", "Parquet" or "UTF-16 text": by the magic numbers that its
/// format begins with, else "binary" if it has a NUL byte in its first 4096 bytes. nullopt for what may be text.
std::optional<std::string_view> format_of_no_text(std::span<const std::uint8_t> file);

}  // namespace snug::data
