#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace snug::state {

struct SafetensorsEntry {
  std::string name;
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::size_t begin, end;  ///< in bytes from the start of the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  ///< in the order of their bytes
  std::map<std::string, std::string> metadata;
};

/// The first part of a file in the safetensors format, and a check of the whole: the length and the JSON of the header,
/// and that the tensors fill what follows it, each as long as its shape and dtype say, without holes or overlaps.
/// `name` is the file's name for errors. Throws DamagedFile.
SafetensorsHeader parse_safetensors_header(std::span<const std::uint8_t> file, std::string_view name);

/// The length in front, and the JSON, padded with spaces to a multiple of 8 bytes, for tensors in the order given;
/// begin and end are ignored. The reference implementation orders them by element type, then by name
/// (safetensors_order), and this writes the same bytes as it does.
std::string format_safetensors_header(std::span<const SafetensorsEntry> tensors,
                                      const std::map<std::string, std::string>& metadata);

/// Whether a tensor stands in front of another one in files of the reference implementation.
bool safetensors_order(const SafetensorsEntry& a, const SafetensorsEntry& b);

}  // namespace snug::state
