#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace snug::state {

/// What a folder of training state consists of.
struct Manifest {
  struct File {
    std::uint64_t bytes = 0;
    std::string hash;  ///< XXH3 of 128 bits, as 32 hexadecimal digits

    bool operator==(const File&) const = default;
  };
  std::int64_t step = 0;                           ///< steps that were done
  std::optional<double> metric;                    ///< smaller is better; a validation loss
  std::map<std::string, File, std::less<>> files;  ///< plain names

  bool operator==(const Manifest&) const = default;
};

/// One line of JSON, and one with its own hash: no bit of it can change unseen.
std::string format_manifest(const Manifest& manifest);

/// Reads that. `name` is the file's for errors. Throws DamagedFile.
Manifest parse_manifest(std::string_view text, std::string_view name);

/// The hash of some bytes as manifests have it.
std::string hash_of(std::string_view bytes);

}  // namespace snug::state
