#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace snug::data {

enum class Colours : std::uint8_t {
  Rgb,   ///< three channels; what is grey has three equal ones
  Grey,  ///< one channel: how bright the eye finds the colours (ITU-R BT.601)
};

struct ImageFileOptions {
  Colours colours = Colours::Rgb;
  std::int64_t most_pixels = 100'000'000;  ///< of one file; it is refused before memory is taken for more
};

/// The pixels of a JPEG or PNG file, told apart by their first bytes: uint8, (channels, height, width), contiguous.
/// `name` is the file's for errors. Throws UsageError when it is neither, damaged, cut off or too large.
at::Tensor decode_image(std::span<const std::uint8_t> file, std::string_view name,
                        const ImageFileOptions& options = {});

/// The same of a file, which also must be readable.
at::Tensor read_image(const std::filesystem::path& path, const ImageFileOptions& options = {});

}  // namespace snug::data
