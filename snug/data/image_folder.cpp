#include "snug/data/image_folder.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/lower_case.h"
#include "snug/data/permutation.h"

namespace snug::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAdvice = "give a folder that has a folder of JPEG or PNG files for each class";

template <class... Args>
[[noreturn]] void refuse_image_folder(const fs::path& path, fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format("image folder: {}: {}; {}", path.string(),
                               fmt::format(format, std::forward<Args>(args)...), kAdvice));
}

bool is_image(const fs::path& path) {
  constexpr std::array<std::string_view, 3> kEndings{".jpg", ".jpeg", ".png"};
  return std::ranges::count(kEndings, in_lower_case(path.extension().string())) > 0;
}

template <class Iterator, class Wanted>
std::vector<fs::path> sorted_paths(const fs::path& folder, const Wanted& wanted) {
  std::vector<fs::path> paths;
  std::error_code error;
  Iterator entry(folder, error);
  for (; !error && entry != Iterator(); entry.increment(error)) {
    if (wanted(*entry)) paths.push_back(entry->path());
  }
  if (error) refuse_image_folder(folder, "{}", error.message());
  std::ranges::sort(paths, {}, [](const fs::path& path) { return path.native(); });
  return paths;
}

}  // namespace

ImageFolder::ImageFolder(const fs::path& folder, ImageFolderOptions options) : options_(std::move(options)) {
  if (options_.batch < 1 || options_.file.most_pixels < 1) {
    throw UsageError(fmt::format("image folder: batch = {} and most_pixels = {} must both be at least 1",
                                 options_.batch, options_.file.most_pixels));
  }
  check_transforms(options_.transforms, options_.file.colours == Colours::Rgb ? 3 : 1);
  // A link that leads nowhere is neither.
  std::error_code none;
  const auto is_folder = [&](const fs::directory_entry& entry) { return entry.is_directory(none); };
  const auto is_picture = [&](const fs::directory_entry& entry) {
    return is_image(entry.path()) && entry.is_regular_file(none);
  };
  for (const fs::path& path : sorted_paths<fs::directory_iterator>(folder, is_folder)) {
    const auto label = static_cast<std::int64_t>(classes_.size());
    const std::vector<fs::path> files = sorted_paths<fs::recursive_directory_iterator>(path, is_picture);
    if (files.empty()) refuse_image_folder(path, "this class has no image");
    classes_.push_back(path.filename().string());
    for (const fs::path& file : files) images_.push_back({file, label});
  }
  if (classes_.empty()) refuse_image_folder(folder, "there is no folder in it");
}

ImageBatch ImageFolder::batch(std::int64_t step) const {
  const std::int64_t first = first_sample(step, options_.batch, "image folder");
  ImageBatch batch{{}, at::empty({options_.batch}, at::kLong)};
  for (std::int64_t i = 0; i < options_.batch; ++i) {
    const std::int64_t sample = first + i;
    const std::int64_t number =
        options_.order == ImageFolderOptions::Order::Sorted ? sample % size() : shuffled(sample, size(), options_.seed);
    const auto& [path, label] = images_[static_cast<std::size_t>(number)];
    const auto epoch = static_cast<std::uint64_t>(sample / size());
    const std::uint64_t key = mix(mix(mix(options_.seed) + epoch) + static_cast<std::uint64_t>(number));
    const at::Tensor image = transformed(read_image(path, options_.file), options_.transforms, key, path.string());
    if (i == 0) {
      std::vector<std::int64_t> shape = image.sizes().vec();
      shape.insert(shape.begin(), options_.batch);
      batch.images = at::empty(shape, image.options());
    }
    at::Tensor place = batch.images.select(0, i);
    if (place.sizes() != image.sizes()) {
      throw UsageError(fmt::format(
          "image folder: {}: {} by {} pixels, in a batch whose first image has {} by {}; end the transforms "
          "with one size for all, as a crop does",
          path.string(), image.size(2), image.size(1), place.size(2), place.size(1)));
    }
    place.copy_(image);
    batch.labels.mutable_data_ptr<std::int64_t>()[i] = label;
  }
  return batch;
}

}  // namespace snug::data
