#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "snug/data/image_file.h"
#include "snug/data/image_transform.h"

namespace snug::data {

struct ImageBatch {
  at::Tensor images;  ///< (batch, channels, height, width); uint8, or float32 where Normalize is among the transforms
  at::Tensor labels;  ///< (batch), int64
};

struct ImageFolderOptions {
  enum class Order : std::uint8_t {
    Shuffled,  ///< anew in every epoch
    Sorted,    ///< by class and path, in every epoch: for validation
  };
  std::int64_t batch = 32;
  std::vector<ImageTransform> transforms{RandomResizedCrop{}, HorizontalFlip{}, Normalize{}};
  Order order = Order::Shuffled;
  std::uint64_t seed = 0;
  ImageFileOptions file = {};
};

/// Batches of labelled images from a folder with a folder for each class. It holds names only, and no position:
/// batches are pure functions, safe to call from any thread, and files are read when they are wanted. Memory of a
/// batch while it is made, for each worker: the batch, and up to three times one image as it is in the file.
class ImageFolder {
 public:
  /// Labels are the numbers of the classes in the order of their names (of their bytes). Files that end in .jpg, .jpeg
  /// or .png, in any case, at any depth, are images; others are skipped. Throws UsageError when the folder cannot be
  /// read, has no class or one without images, and when an option is out of range.
  ImageFolder(const std::filesystem::path& folder, ImageFolderOptions options);

  /// The batch of step `step`, from 0 on, which depends on seed, step and the files alone: to resume, go on counting.
  /// An epoch takes every image once; a batch may end one epoch and begin the next. What is random about an image
  /// depends on the seed, the epoch and its number. Throws UsageError naming the file that is damaged, or that comes
  /// out in another size than the first of the batch; Error when `step` is negative.
  [[nodiscard]] ImageBatch batch(std::int64_t step) const;

  /// Images of an epoch.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(images_.size()); }
  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }

 private:
  struct Image {
    std::filesystem::path path;
    std::int64_t label;
  };
  ImageFolderOptions options_;
  std::vector<std::string> classes_;
  std::vector<Image> images_;
};

/// See Prefetcher.
inline std::vector<at::Tensor*> tensors_of(ImageBatch& batch) { return {&batch.images, &batch.labels}; }

}  // namespace snug::data
