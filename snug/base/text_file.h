#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace snug {

/// No text that is read whole is longer; some devices and pipes never end.
inline constexpr std::size_t kMostText = std::size_t{1} << 30;

/// The bytes of a whole file, or what comes from a device or pipe until it ends. Throws std::system_error with the
/// reason that the system gave, EFBIG where there are more than `most`.
std::string read_text(const std::filesystem::path& path, std::size_t most = kMostText);

/// Writes a whole file through DurableFile: it is there as a whole, or what was there before is. Throws
/// std::system_error with the reason that the system gave.
void write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace snug
