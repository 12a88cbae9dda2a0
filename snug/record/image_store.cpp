#include "snug/record/image_store.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>

#include <utility>

#include "snug/record/recording_key.h"

namespace snug::record {

template <class Work>
auto ImageStore::aside(const Work& work) {
  observers_.tell_recording(&TapeObserver::aside_begins);
  const auto over = c10::make_scope_exit([&] { observers_.tell_recording(&TapeObserver::aside_ends); });
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
  const TapeMutex::Lent lent(mutex_);
  return work();
}

void ImageStore::add(plan::ValueId value, const c10::Storage& storage, Bytes bytes, const plan::Encoding& encoding) {
  Image image{.contents = aside([&] { return MovedContents::compressed(storage, bytes, encoding); }), .decoded = {}};
  if (!images_.emplace(value, std::move(image)).second) return;  // another thread was quicker
  book_.add(value);
  bytes_ += bytes;
}

c10::Storage ImageStore::contents(plan::ValueId value) {
  if (!book_.decoded(value)) {
    const memory::Compressed encoded = images_.at(value).contents.contents;  // saved tensors may be released meanwhile
    c10::Storage decoded = aside([&] { return encoded.expand(); });
    if (!book_.has(value) || book_.decoded(value)) return decoded;
    images_.at(value).decoded = std::move(decoded);
    book_.set_decoded(value);
  }
  return images_.at(value).decoded;
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
