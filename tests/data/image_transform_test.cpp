#include "snug/data/image_transform.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/data/image_file.h"
#include "tests/base/fault.h"

namespace snug::data {
namespace {

using ::testing::HasSubstr;
using Transforms = std::vector<ImageTransform>;

/// Three channels; each pixel says where it is.
at::Tensor numbered_pixels(std::int64_t height, std::int64_t width) {
  const at::Tensor rows = at::arange(height).view({height, 1}).expand({height, width});
  const at::Tensor columns = at::arange(width).view({1, width}).expand({height, width});
  return at::stack({rows, columns, rows + columns}).to(at::kByte).contiguous();
}

at::Tensor apply(const Transforms& transforms, const at::Tensor& image, std::uint64_t key = 0) {
  check_transforms(transforms, image.size(0));
  return transformed(image, transforms, key, "an image");
}

std::string transforms_fault(const Transforms& transforms, std::int64_t channels = 3) {
  return snug::testing::fault([&] { check_transforms(transforms, channels); });
}

TEST(ImageTransform, CutsOutTheMiddle) {
  const at::Tensor image = apply({CentreCrop{2, 3}}, numbered_pixels(6, 7));
  ASSERT_EQ(image.sizes(), (std::vector<std::int64_t>{3, 2, 3}));
  EXPECT_EQ(image[0][0][0].item<int>(), 2);
  EXPECT_EQ(image[1][0][0].item<int>(), 2);
  try {
    (void)apply({CentreCrop{8, 3}}, numbered_pixels(6, 7));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("an image: 7 by 6 pixels have no middle of 3 by 8; resize it first"));
  }
}

TEST(ImageTransform, KeepsTheShapeWhenItSetsTheShorterEdge) {
  EXPECT_EQ(apply({ResizeShorterEdge{8}}, numbered_pixels(16, 40)).sizes(), (std::vector<std::int64_t>{3, 8, 20}));
  EXPECT_EQ(apply({ResizeShorterEdge{8}}, numbered_pixels(33, 16)).sizes(), (std::vector<std::int64_t>{3, 16, 8}));
  const at::Tensor same = numbered_pixels(8, 9);
  EXPECT_TRUE(at::equal(apply({ResizeShorterEdge{8}}, same), same));
}

TEST(ImageTransform, ScalesAsPillowDoes) {
  const std::filesystem::path folder = std::filesystem::path(SNUG_TESTS) / "data" / "images";
  const auto references = nlohmann::json::parse(std::ifstream(folder / "images.json"));
  for (const auto& [height, width] : {std::pair<std::int64_t, std::int64_t>{5, 7}, {20, 25}}) {
    // A crop that takes it all, whatever its shape.
    const RandomResizedCrop whole{height, width, 1, 1, 18.0 / 13, 18.0 / 13};
    const at::Tensor image = apply({whole}, read_image(folder / "rgb.png")).permute({1, 2, 0}).contiguous();
    const auto hex = references["resized"][std::to_string(width) + "x" + std::to_string(height)].get<std::string>();
    ASSERT_EQ(image.numel() * 2, static_cast<std::int64_t>(hex.size()));
    for (std::int64_t i = 0; i < image.numel(); ++i) {
      const int expected = std::stoi(hex.substr(static_cast<std::size_t>(i) * 2, 2), nullptr, 16);
      // Both round the weights to integers, of their own widths.
      EXPECT_NEAR(image.const_data_ptr<std::uint8_t>()[i], expected, 1) << i;
    }
  }
}

TEST(ImageTransform, RandomCropsAreInsideAndOfTheShapesAllowed) {
  const RandomResizedCrop options{.height = 6, .width = 6};
  std::set<std::vector<std::uint8_t>> seen;
  for (std::uint64_t key = 0; key < 200; ++key) {
    const at::Tensor image = apply({options}, numbered_pixels(50, 80), key).contiguous();
    ASSERT_EQ(image.sizes(), (std::vector<std::int64_t>{3, 6, 6}));
    EXPECT_LT(image[0].max().item<int>(), 50);
    EXPECT_LT(image[1].max().item<int>(), 80);
    // How far apart the outer pixels are says how much was cut out.
    const double high = (image[0][5][0].item<double>() - image[0][0][0].item<double>()) * 6 / 5;
    const double wide = (image[1][0][5].item<double>() - image[1][0][0].item<double>()) * 6 / 5;
    EXPECT_GT(high * wide, 50 * 80 * 0.08 * 0.6);  // whole pixels and rounded bytes
    EXPECT_LT(high * wide, 50 * 80);
    EXPECT_GT(wide / high, 0.75 * 0.75);
    EXPECT_LT(wide / high, 4.0 / 3 * 4 / 3);
    const auto* bytes = image.const_data_ptr<std::uint8_t>();
    seen.insert({bytes, bytes + image.numel()});
    EXPECT_TRUE(at::equal(image, apply({options}, numbered_pixels(50, 80), key))) << "the same for the same key";
  }
  EXPECT_GT(seen.size(), 190U);
}

TEST(ImageTransform, ACropThatFitsNowhereTakesTheMiddle) {
  const at::Tensor image = apply({RandomResizedCrop{4, 4, 1, 1, 1, 1}}, numbered_pixels(10, 100)).contiguous();
  EXPECT_NEAR(image[1].to(at::kFloat).mean().item<double>(), 49.5, 1);
  EXPECT_GT(image[1].min().item<int>(), 44);
  EXPECT_EQ(apply({RandomResizedCrop{.height = 3, .width = 2}}, numbered_pixels(1, 1)).sizes(),
            (std::vector<std::int64_t>{3, 3, 2}));
}

TEST(ImageTransform, FlipsHalfOfThem) {
  const at::Tensor image = numbered_pixels(4, 5);
  int flipped = 0;
  for (std::uint64_t key = 0; key < 1000; ++key) {
    const at::Tensor result = apply({HorizontalFlip{}}, image, key);
    const bool same = at::equal(result, image);
    EXPECT_TRUE(same || at::equal(result, image.flip({2})));
    flipped += same ? 0 : 1;
  }
  EXPECT_NEAR(flipped, 500, 80);  // five standard deviations
  EXPECT_TRUE(at::equal(apply({HorizontalFlip{0}}, image, 3), image));
  EXPECT_FALSE(at::equal(apply({HorizontalFlip{1}}, image, 3), image));
}

TEST(ImageTransform, NormalizesEachChannel) {
  const at::Tensor bytes = at::full({3, 2, 2}, 51, at::kByte);
  const at::Tensor image = apply({Normalize{{0.1, 0.2, 0.3}, {0.5, 1, 2}}}, bytes);
  ASSERT_EQ(image.scalar_type(), at::kFloat);
  EXPECT_NEAR(image[0][0][0].item<double>(), 0.2, 1e-6);
  EXPECT_NEAR(image[1][1][1].item<double>(), 0.0, 1e-6);
  EXPECT_NEAR(image[2][0][1].item<double>(), -0.05, 1e-6);
  EXPECT_EQ(bytes[0][0][0].item<int>(), 51) << "the image itself stays";
}

TEST(ImageTransform, RefusesOptionsOutOfRange) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(transforms_fault({RandomResizedCrop{}, HorizontalFlip{}, Normalize{}}), "none");
  EXPECT_THAT(transforms_fault({RandomResizedCrop{.height = 0}}), HasSubstr("height = 0"));
  EXPECT_THAT(transforms_fault({RandomResizedCrop{.smallest = 0}}), HasSubstr("areas of a random crop go from 0 to 1"));
  EXPECT_THAT(transforms_fault({RandomResizedCrop{.largest = 1.1}}), HasSubstr("areas"));
  EXPECT_THAT(transforms_fault({RandomResizedCrop{.narrowest = 2, .widest = 1}}), HasSubstr("ratios"));
  EXPECT_THAT(transforms_fault({RandomResizedCrop{.narrowest = kNan}}), HasSubstr("ratios"));
  EXPECT_THAT(transforms_fault({CentreCrop{3, -1}}), HasSubstr("width = -1"));
  EXPECT_THAT(transforms_fault({ResizeShorterEdge{1 << 20}}), HasSubstr("from 1 to 65536"));
  EXPECT_THAT(transforms_fault({HorizontalFlip{kNan}}), HasSubstr("probability nan"));
  EXPECT_THAT(transforms_fault({Normalize{}}, 1),
              HasSubstr("3 means and 3 deviations are given to normalize images of 1"));
  EXPECT_THAT(transforms_fault({Normalize{{0, 0, 0}, {1, 0, 1}}}), HasSubstr("deviations must be above 0"));
  EXPECT_THAT(transforms_fault({Normalize{}, HorizontalFlip{}}), HasSubstr("must be the last"));
}

}  // namespace
}  // namespace snug::data
