#include "snug/record/image_store.h"

#include <utility>

#include "snug/record/aside_scope.h"

namespace snug::record {

void ImageStore::add(plan::ValueId value, const c10::Storage& storage, Bytes bytes, const plan::Encoding& encoding) {
  Image image{.contents =
                  [&] {
                    const AsideScope aside(mutex_, observers_);
                    return MovedContents::compressed(storage, bytes, encoding);
                  }(),
              .decoded = {},
              .writes = {}};
  if (!images_.emplace(value, std::move(image)).second) return;  // another thread was quicker
  book_.add(value);
  bytes_ += bytes;
}

c10::Storage ImageStore::contents(plan::ValueId value) {
  if (!book_.decoded(value) || images_.at(value).writes.raised()) {
    const memory::Compressed encoded = images_.at(value).contents.contents;  // saved tensors may be released meanwhile
    c10::Storage decoded = [&] {
      const AsideScope aside(mutex_, observers_);
      return encoded.expand();
    }();
    if (!book_.has(value)) return decoded;
    Image& image = images_.at(value);
    if (book_.decoded(value) && !image.writes.raised()) return decoded;  // another thread was quicker
    image.decoded = std::move(decoded);
    image.writes = SeenVersion();
    book_.set_decoded(value);
  }
  return images_.at(value).decoded;
}

void ImageStore::count_writes_of(plan::ValueId value, const at::Tensor& tensor) {
  if (const auto image = images_.find(value); image != images_.end()) image->second.writes.count_writes_of(tensor);
}

void ImageStore::consume(plan::ValueId value) {
  if (book_.consume(value).decoded) images_.at(value).decoded = c10::Storage();
}

void ImageStore::release(plan::ValueId value, plan::Unpacked unpacked) {
  const plan::Images::Gone gone = book_.release(value, unpacked);
  if (gone.decoded) images_.at(value).decoded = c10::Storage();
  if (gone.image) images_.erase(value);
}

void ImageStore::end_pass() {
  for (const plan::ValueId value : book_.end_pass()) images_.at(value).decoded = c10::Storage();
}

void ImageStore::settle() {
  for (const plan::ValueId value : book_.settle()) images_.erase(value);
}

}  // namespace snug::record
