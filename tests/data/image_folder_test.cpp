#include "snug/data/image_folder.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/data/prefetcher.h"
#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using snug::testing::fault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Order = ImageFolderOptions::Order;

std::string image(const std::string& name) {
  std::ifstream in(std::filesystem::path(SNUG_TESTS) / "data" / "images" / name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Three classes of 2, 3 and 1 images, and files that are none.
class ImageFolderTest : public ::testing::Test {
 protected:
  ImageFolderTest() : files("image_folder") {
    (void)files.write("dogs/b.PNG", image("palette.png"));
    (void)files.write("dogs/a.jpg", image("rgb.jpg"));
    (void)files.write("cats/deep/x.jpeg", image("grey.jpg"));
    (void)files.write("cats/y.png", image("rgb.png"));
    (void)files.write("cats/z.png", image("rgba.png"));
    (void)files.write("Zebras/only.jpg", image("progressive.jpg"));
    (void)files.write("Zebras/notes.txt", "no image");
    (void)files.write("readme.txt", "no class");
  }
  TemporaryFolder files;
};

std::vector<std::int64_t> labels(const ImageBatch& batch) {
  const auto* begin = batch.labels.const_data_ptr<std::int64_t>();
  return {begin, begin + batch.labels.numel()};
}

TEST_F(ImageFolderTest, LabelsAreTheClassesInTheOrderOfTheirNames) {
  const ImageFolder dataset(files.path(), {.batch = 8, .transforms = {}, .order = Order::Sorted});
  EXPECT_THAT(dataset.classes(), ElementsAre("Zebras", "cats", "dogs"));
  EXPECT_EQ(dataset.size(), 6);
  const ImageBatch batch = dataset.batch(0);
  EXPECT_THAT(labels(batch), ElementsAre(0, 1, 1, 1, 2, 2, 0, 1));
  ASSERT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{8, 3, 13, 18}));
  EXPECT_EQ(batch.images.scalar_type(), at::kByte);
  EXPECT_TRUE(at::equal(batch.images[2], read_image(files.path() / "cats/y.png")));
  EXPECT_TRUE(at::equal(batch.images[4], read_image(files.path() / "dogs/a.jpg")));
}

TEST_F(ImageFolderTest, TakesEveryImageOnceAnEpochAndChangesItAnew) {
  const ImageFolder dataset(files.path(), {.batch = 1, .transforms = {RandomResizedCrop{8, 8}}, .seed = 3});
  std::vector<std::vector<std::int64_t>> order(3);
  std::set<double> sums;
  for (std::int64_t step = 0; step < 18; ++step) {
    const ImageBatch batch = dataset.batch(step);
    order[static_cast<std::size_t>(step / 6)].push_back(labels(batch).front());
    sums.insert(batch.images.to(at::kDouble).sum().item<double>());
  }
  for (auto epoch : order) {
    std::ranges::sort(epoch);
    EXPECT_THAT(epoch, ElementsAre(0, 1, 1, 1, 2, 2));
  }
  EXPECT_GT(sums.size(), 14U) << "an image is cut differently in each epoch";
}

TEST_F(ImageFolderTest, BatchesDependOnSeedAndStepAloneForAnyNumberOfWorkers) {
  const auto options = [](std::uint64_t seed) {
    return ImageFolderOptions{
        .batch = 4, .transforms = {RandomResizedCrop{8, 8}, HorizontalFlip{}, Normalize{}}, .seed = seed};
  };
  const ImageFolder dataset(files.path(), options(1)), other(files.path(), options(2));
  const auto make = [&](std::int64_t step) { return dataset.batch(step); };
  for (const int workers : {0, 1, 3}) {
    Prefetcher<ImageBatch> prefetcher(make, {.workers = workers, .depth = 3, .first_step = 2, .pinned = true});
    for (std::int64_t step = 2; step < 8; ++step) {
      const ImageBatch batch = prefetcher.next(), expected = dataset.batch(step);
      EXPECT_TRUE(at::equal(batch.images, expected.images));
      EXPECT_TRUE(at::equal(batch.labels, expected.labels));
      EXPECT_EQ(batch.images.scalar_type(), at::kFloat);
    }
  }
  EXPECT_FALSE(at::equal(dataset.batch(0).images, other.batch(0).images));
  EXPECT_THROW((void)dataset.batch(-1), Error);
}

TEST_F(ImageFolderTest, MakesGreyImages) {
  const ImageFolder dataset(
      files.path(),
      {.batch = 2, .transforms = {CentreCrop{10, 10}, Normalize{{0.5}, {0.25}}}, .file = {.colours = Colours::Grey}});
  EXPECT_EQ(dataset.batch(0).images.sizes(), (std::vector<std::int64_t>{2, 1, 10, 10}));
}

TEST_F(ImageFolderTest, NamesTheFileThatIsDamaged) {
  (void)files.write("cats/broken.jpg", image("rgb.jpg").substr(0, 300));
  const ImageFolder dataset(files.path(), {.batch = 7, .transforms = {}, .order = Order::Sorted});
  EXPECT_THAT(fault([&] { (void)dataset.batch(0); }), HasSubstr("cats/broken.jpg: "));
}

TEST_F(ImageFolderTest, ImagesOfABatchHaveOneSize) {
  const ImageFolder dataset(files.path(), {.batch = 1, .transforms = {ResizeShorterEdge{9}}, .order = Order::Sorted});
  EXPECT_EQ(dataset.batch(0).images.sizes(), (std::vector<std::int64_t>{1, 3, 9, 12}));
  (void)files.write("cats/small.png", image("small.png"));
  const ImageFolder mixed(files.path(), {.batch = 7, .transforms = {}, .order = Order::Sorted});
  const std::string wrong = fault([&] { (void)mixed.batch(0); });
  EXPECT_THAT(wrong, HasSubstr("cats/small.png: 6 by 4 pixels, in a batch whose first image has 18 by 13"));
}

TEST_F(ImageFolderTest, RefusesFoldersAndOptionsThatCannotBe) {
  const auto open = [&](const std::filesystem::path& path, ImageFolderOptions options) {
    return fault([&] { ImageFolder(path, std::move(options)); });
  };
  EXPECT_THAT(open(files.path() / "none", {}), HasSubstr("none: No such file or directory; give a folder"));
  EXPECT_THAT(open(files.path() / "readme.txt", {}), HasSubstr("Not a directory"));
  EXPECT_THAT(open(files.path() / "cats/deep", {}), HasSubstr("there is no folder in it"));
  EXPECT_THAT(open(files.path(), {.batch = 0}), HasSubstr("batch = 0"));
  EXPECT_THAT(open(files.path(), {.file = {.colours = Colours::Grey}}), HasSubstr("images of 1 channels"));
  (void)files.write("empty/notes.txt", "");
  EXPECT_THAT(open(files.path(), {}), HasSubstr("empty: this class has no image"));
}

}  // namespace
}  // namespace snug::data
