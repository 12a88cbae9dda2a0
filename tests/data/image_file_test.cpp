// Decoders against Pillow, on files that make_references.py wrote.
#include "snug/data/image_file.h"

#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/memory/cpu_memory.h"
#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::filesystem::path images() { return std::filesystem::path(SNUG_TESTS) / "data" / "images"; }

const nlohmann::json& image_references() {
  static const nlohmann::json all = nlohmann::json::parse(std::ifstream(images() / "images.json"));
  return all;
}

at::Tensor pixels_of(const std::string& hex, std::int64_t channels) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  const std::int64_t height = image_references()["height"], width = image_references()["width"];
  return at::from_blob(bytes.data(), {height, width, channels}, at::kByte).clone().permute({2, 0, 1});
}

std::int64_t largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kInt) - b.to(at::kInt)).abs().max().item<std::int64_t>();
}

std::string image_fault(const std::string& bytes, const ImageFileOptions& options = {}) {
  return snug::testing::fault([&] { (void)decode_image(as_bytes(bytes), "some/file", options); });
}

TEST(ImageFile, GivesPillowsPixels) {
  int files = 0;
  for (const auto& [name, hex] : image_references()["pixels"].items()) {
    const at::Tensor image = read_image(images() / name);
    const at::Tensor expected = pixels_of(hex.get<std::string>(), 3);
    ASSERT_EQ(image.sizes(), expected.sizes()) << name;
    ASSERT_EQ(image.scalar_type(), at::kByte);
    EXPECT_TRUE(image.is_contiguous());
    // Equal with Debian's libjpeg-turbo, which is Pillow's too; other builds of libjpeg round and scale up differently.
    const std::int64_t allowed = name.ends_with(".jpg") ? 2 : 0;
    EXPECT_LE(largest_difference(image, expected), allowed) << name;
    ++files;
  }
  EXPECT_EQ(files, 14);
}

TEST(ImageFile, MakesGreyAsPillowDoes) {
  const ImageFileOptions grey{.colours = Colours::Grey};
  const at::Tensor expected = pixels_of(image_references()["grey"].get<std::string>(), 1);
  EXPECT_EQ(largest_difference(read_image(images() / "rgb.png", grey), expected), 0);
  EXPECT_EQ(largest_difference(read_image(images() / "grey.png", grey), expected), 0);
}

TEST(ImageFile, TellsFilesApartByContents) {
  const TemporaryFolder folder("image_file");
  const auto path = folder.write("misnamed.png", read_text(images() / "rgb.jpg"));
  EXPECT_EQ(largest_difference(read_image(path), read_image(images() / "rgb.jpg")), 0);
  EXPECT_THAT(image_fault(""), HasSubstr("image: some/file: it begins neither as a JPEG nor as a PNG file does"));
  EXPECT_THAT(image_fault("GIF89a"), HasSubstr("neither"));
  try {
    (void)read_image(folder.path() / "none.jpg");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("none.jpg: No such file or directory"));
  }
}

TEST(ImageFile, RefusesTooManyPixelsBeforeItTakesMemory) {
  auto& memory = memory::CpuMemory::instance();
  for (const char* name : {"rgb.png", "rgb.jpg"}) {
    EXPECT_EQ(image_fault(read_text(images() / name), {.most_pixels = 234}), "none");
    EXPECT_THAT(image_fault(read_text(images() / name), {.most_pixels = 233}),
                HasSubstr("18 by 13 pixels are more than the 233 allowed"));
  }
  // A PNG that says it has 900,000 by 900,000 pixels; the checksum of its header is right.
  std::string bomb = read_text(images() / "rgb.png");
  const std::string header("IHDR\x00\x0d\xbb\xa0\x00\x0d\xbb\xa0\x08\x02\x00\x00\x00", 17);
  std::uint32_t crc = 0xFFFFFFFFU;
  for (const char c : header) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0);
  }
  crc = ~crc;
  bomb.replace(12, header.size(), header);
  for (int i = 0; i < 4; ++i) bomb[29 + static_cast<std::size_t>(i)] = static_cast<char>(crc >> (24 - 8 * i));
  // And a JPEG of 65,500 by 65,500.
  std::string jpeg = read_text(images() / "rgb.jpg");
  const std::size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");
  memory.reset_peak();
  const Bytes before = memory.stats().allocated_peak;
  EXPECT_THAT(image_fault(bomb), HasSubstr("900000 by 900000 pixels are more than"));
  EXPECT_THAT(image_fault(jpeg), HasSubstr("65500 by 65500 pixels are more than"));
  EXPECT_EQ(memory.stats().allocated_peak, before);
}

TEST(ImageFile, FilesThatAreCutOffAreDamaged) {
  for (const auto& [name, hex] : image_references()["pixels"].items()) {
    const std::string whole = read_text(images() / name);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_NE(image_fault(whole.substr(0, size)), "none") << name << " of " << size << " bytes";
    }
  }
}

TEST(ImageFile, FlippedBitsAreErrorsOrOtherPixelsAndNoCrash) {
  int refused = 0, read = 0;
  for (const auto& [name, hex] : image_references()["pixels"].items()) {
    for_each_damage(read_text(images() / name), [&](const std::string& bytes) {
      const std::string wrong = image_fault(bytes, {.most_pixels = 100'000});
      ++(wrong == "none" ? read : refused);
      EXPECT_THAT(wrong, AnyOf("none", HasSubstr("some/file")));
    });
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_GT(read, 100);
}

TEST(ImageFile, AFileOfEndlessScansIsRefused) {
  const std::string whole = read_text(images() / "progressive.jpg");
  // The first scan, again and again.
  const std::size_t scan = whole.find("\xff\xda");
  std::size_t end = scan + 2;
  while (whole[end] != '\xff' || whole[end + 1] == '\0') ++end;
  std::string endless = whole.substr(0, end);
  for (int i = 0; i < 600; ++i) endless += whole.substr(scan, end - scan);
  EXPECT_THAT(image_fault(endless + whole.substr(end)), HasSubstr("more than 500 scans"));
}

}  // namespace
}  // namespace snug::data
