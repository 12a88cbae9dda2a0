#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

namespace snug::data {

/// Cuts out a part of random size and place and scales it to height by width (Szegedy et al. 2015).
struct RandomResizedCrop {
  std::int64_t height = 224, width = 224;
  double smallest = 0.08, largest = 1;           ///< of the image's area
  double narrowest = 3.0 / 4, widest = 4.0 / 3;  ///< width by height
};
/// Scales so that the shorter edge has this length.
struct ResizeShorterEdge {
  std::int64_t length = 256;
};
/// Cuts out the middle. An image that is smaller is an error.
struct CentreCrop {
  std::int64_t height = 224, width = 224;
};
/// Mirrors left and right.
struct HorizontalFlip {
  double probability = 0.5;
};
/// Makes float32 of bytes: (byte / 255 - mean) / deviation, channel by channel.
struct Normalize {
  std::vector<double> mean{0.485, 0.456, 0.406}, deviation{0.229, 0.224, 0.225};
};

/// What is scaled is scaled bilinearly, and blurred first where it shrinks, as Pillow does.
using ImageTransform = std::variant<RandomResizedCrop, ResizeShorterEdge, CentreCrop, HorizontalFlip, Normalize>;

/// Throws UsageError when an option of one of them is out of range, or when Normalize has not one number for each of
/// `channels`, or is not the last.
void check_transforms(std::span<const ImageTransform> transforms, std::int64_t channels);

/// The image, uint8 and (channels, height, width), after all of them, one after the other. All randomness is of `key`.
/// `name` is the image's for errors. Throws UsageError when it is too small.
at::Tensor transformed(at::Tensor image, std::span<const ImageTransform> transforms, std::uint64_t key,
                       std::string_view name);

}  // namespace snug::data
