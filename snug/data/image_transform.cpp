#include "snug/data/image_transform.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "snug/base/errors.h"
#include "snug/data/permutation.h"

namespace snug::data {
namespace {

template <class... Args>
[[noreturn]] void refuse_transform(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format("image transforms: {}", fmt::format(format, std::forward<Args>(args)...)));
}

/// Numbers that a key stands for.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(key) {}

  /// At least `low` and less than `high`.
  double between(double low, double high) {
    constexpr double kUnit = 1.0 / 9007199254740992.0;  // 2^-53
    return low + (high - low) * (static_cast<double>(mix(mix(key_) + drawn_++) >> 11U) * kUnit);
  }
  /// From 0 to last.
  std::int64_t up_to(std::int64_t last) {
    return std::min(last, static_cast<std::int64_t>(between(0, static_cast<double>(last) + 1)));
  }

 private:
  std::uint64_t key_, drawn_ = 0;
};

struct Part {
  std::int64_t top, left, height, width;
};

at::Tensor cut(const at::Tensor& image, const Part& part) {
  return image.narrow(1, part.top, part.height).narrow(2, part.left, part.width);
}

Part middle(const at::Tensor& image, std::int64_t height, std::int64_t width) {
  return {(image.size(1) - height) / 2, (image.size(2) - width) / 2, height, width};
}

at::Tensor scaled(const at::Tensor& image, std::int64_t height, std::int64_t width) {
  if (image.size(1) == height && image.size(2) == width) return image;
  return at::_upsample_bilinear2d_aa(image.unsqueeze(0).contiguous(), {height, width}, /*align_corners=*/false)
      .squeeze(0);
}

Part random_part(const at::Tensor& image, const RandomResizedCrop& options, Draws& draws) {
  const std::int64_t height = image.size(1), width = image.size(2);
  const auto area = static_cast<double>(height * width);
  constexpr int kTries = 10;
  for (int i = 0; i < kTries; ++i) {
    const double wanted = area * draws.between(options.smallest, options.largest);
    const double ratio = std::exp(draws.between(std::log(options.narrowest), std::log(options.widest)));
    const std::int64_t w = std::llround(std::sqrt(wanted * ratio)), h = std::llround(std::sqrt(wanted / ratio));
    if (w >= 1 && h >= 1 && w <= width && h <= height) {
      const std::int64_t top = draws.up_to(height - h), left = draws.up_to(width - w);
      return {top, left, h, w};
    }
  }
  // The largest part in the middle whose shape is allowed.
  const double shape = static_cast<double>(width) / static_cast<double>(height);
  const double ratio = std::clamp(shape, options.narrowest, options.widest);
  const std::int64_t w = std::llround(static_cast<double>(height) * ratio);
  const std::int64_t h = std::llround(static_cast<double>(width) / ratio);
  return middle(image, std::clamp<std::int64_t>(h, 1, height), std::clamp<std::int64_t>(w, 1, width));
}

struct Apply {
  at::Tensor& image;
  Draws& draws;
  std::string_view name;

  void operator()(const RandomResizedCrop& options) const {
    image = scaled(cut(image, random_part(image, options, draws)), options.height, options.width);
  }
  void operator()(const ResizeShorterEdge& options) const {
    const std::int64_t height = image.size(1), width = image.size(2), shorter = std::min(height, width);
    const auto along = [&](std::int64_t edge) {
      return edge == shorter
                 ? options.length
                 : static_cast<std::int64_t>(static_cast<double>(edge) * static_cast<double>(options.length) /
                                             static_cast<double>(shorter));
    };
    constexpr double kMost = 1 << 28;  // pixels
    if (static_cast<double>(along(height)) * static_cast<double>(along(width)) > kMost) {
      refuse_transform(
          "{}: {} by {} pixels, with a shorter edge of {}, would be {} by {}, which is more than {:.0f} in all", name,
          width, height, options.length, along(width), along(height), kMost);
    }
    image = scaled(image, along(height), along(width));
  }
  void operator()(const CentreCrop& options) const {
    if (options.height > image.size(1) || options.width > image.size(2)) {
      refuse_transform("{}: {} by {} pixels have no middle of {} by {}; resize it first", name, image.size(2),
                       image.size(1), options.width, options.height);
    }
    image = cut(image, middle(image, options.height, options.width));
  }
  void operator()(const HorizontalFlip& options) const {
    if (draws.between(0, 1) < options.probability) image = image.flip({2});
  }
  void operator()(const Normalize& options) const {
    const auto channelwise = [&](const std::vector<double>& values) {
      return at::tensor(values, at::kFloat).view({image.size(0), 1, 1});
    };
    image = image.to(at::kFloat).div_(255).sub_(channelwise(options.mean)).div_(channelwise(options.deviation));
  }
};

struct Check {
  std::int64_t channels;
  bool last;

  static void sizes(std::int64_t height, std::int64_t width) {
    constexpr std::int64_t kLongest = 65'536;
    if (height < 1 || width < 1 || height > kLongest || width > kLongest) {
      refuse_transform("height = {} and width = {} must both be from 1 to {}", height, width, kLongest);
    }
  }
  static void range(std::string_view what, double low, double high, double most) {
    if (!(low > 0 && low <= high && high <= most)) {
      refuse_transform("the {} of a random crop go from {} to {}; they must rise, be above 0 and at most {}", what, low,
                       high, most);
    }
  }
  void operator()(const RandomResizedCrop& options) const {
    sizes(options.height, options.width);
    range("areas", options.smallest, options.largest, 1);
    range("ratios", options.narrowest, options.widest, 1000);
  }
  void operator()(const ResizeShorterEdge& options) const { sizes(options.length, options.length); }
  void operator()(const CentreCrop& options) const { sizes(options.height, options.width); }
  void operator()(const HorizontalFlip& options) const {
    if (!(options.probability >= 0 && options.probability <= 1)) {
      refuse_transform("the probability {} of a flip must be from 0 to 1", options.probability);
    }
  }
  void operator()(const Normalize& options) const {
    const auto wanted = static_cast<std::size_t>(channels);
    if (options.mean.size() != wanted || options.deviation.size() != wanted) {
      refuse_transform("{} means and {} deviations are given to normalize images of {} channels", options.mean.size(),
                       options.deviation.size(), channels);
    }
    const auto usable = [](double deviation) { return std::isfinite(deviation) && deviation > 0; };
    if (!std::ranges::all_of(options.deviation, usable)) refuse_transform("deviations must be above 0");
    if (!last) refuse_transform("to normalize must be the last of them: the others work on bytes");
  }
};

}  // namespace

void check_transforms(std::span<const ImageTransform> transforms, std::int64_t channels) {
  for (std::size_t i = 0; i < transforms.size(); ++i) {
    std::visit(Check{channels, i + 1 == transforms.size()}, transforms[i]);
  }
}

at::Tensor transformed(at::Tensor image, std::span<const ImageTransform> transforms, std::uint64_t key,
                       std::string_view name) {
  Draws draws(key);
  for (const ImageTransform& transform : transforms) std::visit(Apply{image, draws, name}, transform);
  return image;
}

}  // namespace snug::data
