#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace snug {

struct FileHash {
  std::size_t bytes = 0;  ///< of the file
  std::string hash;       ///< as hash_128 of all of them
};

/// Of what is on the disk; a few MiB of it are this process's memory at a time. Throws std::system_error with the
/// reason that the system gave.
FileHash file_hash(const std::filesystem::path& path);

}  // namespace snug
