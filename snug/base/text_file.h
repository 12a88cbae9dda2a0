#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace snug {

/// The bytes of a whole file. Throws std::system_error with the reason that the system gave.
std::string read_text(const std::filesystem::path& path);

/// Writes a whole file through DurableFile: it is there as a whole, or what was there before is. Throws
/// std::system_error with the reason that the system gave.
void write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace snug
