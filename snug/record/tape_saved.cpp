// Saved tensors: when they are bound to a value, and what is held for them.
#include <algorithm>
#include <utility>

#include "snug/base/patient_lock.h"
#include "snug/record/tape.h"
#include "snug/record/want_of_room.h"

namespace snug::record {

bool Tape::save(const at::Tensor& tensor, SavedTensor& saved) {
  const PatientLock lock(mutex_);
  if (!is_plain(tensor)) {
    ++saved_.unplain;
    return false;
  }
  saved.view = calls_.look(tensor);
  saved.storage = tensor.storage();
  saved.version = SeenVersion(tensor);
  waiting_.push_back(&saved);
  return true;
}

/// To the value that is there now, whatever has been written since it was saved: unpacking checks that, by version.
void Tape::bind(SavedTensor& saved) {
  const plan::ValueId value = lookup_.value_of(saved.storage, saved.version);
  values_.set_read(value);
  if (values_.unfilled(value)) {
    lookup_.report(value, Opaque::Case::Filled);
    lookup_.make_leaf(value, saved.version);
  }
  saved.view.value = value;
  values_.set_saved_as(value, saved.view.dtype);
  verified_.note(value, saved.view);
  const auto is_there = [&] { return ledger().held(value) || ledger().fetchable(value); };
  // What saves it may have left the stream that made it.
  const bool is_read_now = values_.away(value) || verified_.remembers(value) ||
                           (observers_.measure() && c10::isIntegralType(saved.view.dtype, /*includeBool=*/false));
  if (!is_there() && is_read_now) streams_.wait_for_all(values_.device(value));
  saved.stands_for = what_is_left_for(saved);
  saved.bound = true;
  values_.pack(value, saved.stands_for);
  ++saved_.bound;
  const bool leaves = leaves_weights(value);
  if (!is_there()) {
    const bool goes_away = values_.away(value).has_value();
    if (leaves || goes_away || (saved.stands_for == StandsFor::Value && keeps_when_saved(value))) {
      keep(value, saved.storage);
    } else {
      verified_.remember(value, saved.storage);
    }
  }
  observers_.tell_recording(&TapeObserver::saved, *this, value);
  saved.storage = c10::Storage();
}

/// What the plan leaves backward of what it shows; makes the image for the first of several.
StandsFor Tape::what_is_left_for(const SavedTensor& saved) {
  const plan::ValueId value = saved.view.value;
  const auto if_it_shows_numbers_of = [&](const plan::Encoding& encoding) {
    const bool shows = saved.view.dtype == (encoding.element == sizeof(float) ? at::kFloat : at::kBFloat16);
    return shows ? StandsFor::Image : StandsFor::Value;
  };
  if (values_.images().has(value)) return if_it_shows_numbers_of(values_.images().encoding(value));
  const auto away = values_.away(value);
  if (!away || !plan::is_lossy(*away) || ledger().held(value)) return StandsFor::Value;
  const plan::Encoding* const encoding = planned_encoding(value, away->codec);
  if (encoding == nullptr || if_it_shows_numbers_of(*encoding) == StandsFor::Value) return StandsFor::Value;
  try {
    values_.make_image(value, saved.storage, *encoding);
  } catch (...) {  // it is kept, as what cannot be moved
    if (!is_want_of_room(std::current_exception())) failure_ = std::current_exception();
    return StandsFor::Value;
  }
  return StandsFor::Image;
}

/// A saved tensor that an operator is about to write waits until it has: it was packed for this operator.
void Tape::bind_before(const OperatorTraits& traits, const c10::IValue* arguments) {
  std::vector<c10::StorageImpl*> written;
  for_each_written(traits, arguments,
                   [&](const at::Tensor& t) { written.push_back(t.storage().unsafeGetStorageImpl()); });
  std::erase_if(waiting_, [&](SavedTensor* saved) {
    if (std::ranges::find(written, saved->storage.unsafeGetStorageImpl()) != written.end()) return false;
    bind(*saved);
    return true;
  });
}

void Tape::bind_all() {
  const PatientLock lock(mutex_);
  versions_.settle();
  const std::vector<SavedTensor*> waiting = std::exchange(waiting_, {});
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    try {
      bind(*waiting[i]);
    } catch (...) {  // the others wait on
      waiting_.assign(waiting.begin() + static_cast<std::ptrdiff_t>(i) + 1, waiting.end());
      throw;
    }
  }
}

void Tape::forget(SavedTensor& saved, int unpacked_in) {
  const PatientLock lock(mutex_);
  if (!saved.bound) {
    std::erase(waiting_, &saved);
    return;
  }
  observers_.tell_recording(&TapeObserver::release_begins, saved.view.value);
  values_.release(saved.view.value, unpacked_in, saved.stands_for);
  saved.handed_out = {};
  observers_.tell_recording(&TapeObserver::release_ends);
  if (--saved_.bound == 0 && finished()) calls_.forget_draws();
}

SavedCounts Tape::saved_counts() const {
  const PatientLock lock(mutex_);
  SavedCounts counts;
  counts.layout = saved_.unplain;
  for (plan::ValueId v = 0; v < flow().values(); ++v) {
    const int saved = ledger().packs(v);
    (ledger().fetchable(v) ? counts.dropped
     : flow().is_leaf(v)   ? counts.leaves
     : ledger().held(v)    ? counts.kept
                           : counts.dropped) += saved;
  }
  return counts;
}

}  // namespace snug::record
