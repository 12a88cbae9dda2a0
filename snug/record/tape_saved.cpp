// Saved tensors: when they are bound to a value, and what is held for them.
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/record/tape.h"
#include "snug/record/want_of_room.h"

namespace snug::record {
namespace {

/// Whether the tensor keeps no graph of autograd alive. Asked for neither is_leaf() nor grad_fn(), which throw for
/// views that have been written to since they were made without gradients.
bool has_no_graph(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta == nullptr || (!meta->grad_fn_ && !meta->is_view_);
}

}  // namespace

bool Tape::save(const at::Tensor& tensor, SavedTensor& saved) {
  const PatientLock lock(mutex_);
  if (!is_plain(tensor)) {
    ++saved_.unplain;
    return false;
  }
  saved.view = calls_.look(tensor);
  saved.storage = tensor.storage();
  saved.version = SeenVersion(tensor);
  saved.tensor = tensor.getIntrusivePtr();
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
  const bool is_read_now =
      values_.away(value) || (observers_.measure() && c10::isIntegralType(saved.view.dtype, /*includeBool=*/false));
  if (!is_there() && is_read_now) streams_.wait_for_all(values_.device(value));
  saved.stands_for = what_is_left_for(saved);
  saved.bound = true;
  saved.place = saved_.bound.size();
  saved_.bound.push_back(&saved);
  ++saved_.count[values_.address(value)];
  values_.pack(value, saved.stands_for);
  const bool leaves = leaves_weights(value);
  if (!is_there()) {
    const bool goes_away = values_.away(value).has_value();
    if (leaves || goes_away || (saved.stands_for == StandsFor::Value && keeps_when_saved(value)))
      keep(value, saved.storage);
  }
  if (flow().is_leaf(value)) {
    const at::Tensor tensor(saved.tensor.lock());
    if (tensor.defined() && has_no_graph(tensor)) saved.kept_tensor = tensor;
  }
  observers_.tell_recording(&TapeObserver::saved, *this, value);
  const c10::Storage storage = std::exchange(saved.storage, c10::Storage());
  if (saved.stands_for != StandsFor::Value || flow().is_leaf(value) || ledger().held(value)) return;
  // NumPy and the like write only the CPU's memory; elsewhere each look at the contents is a wait.
  if (values_.device(value).is_cpu() && verified_.reads_when_saved(value)) {
    verified_.saved(value, saved.view, storage);
  } else if (!ledger().fetchable(value) && verified_.remembers(value)) {
    streams_.wait_for_all(values_.device(value));
    verified_.remember(value, storage);
  }
}

void Tape::note_written(const at::Tensor& tensor, Version version) {
  const PatientLock lock(mutex_);
  if (outer_ != nullptr) outer_->note_written(tensor, version);
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (saved_.count.find(storage) == saved_.count.end()) return;
  const std::optional<View> view = is_plain(tensor) ? std::optional(calls_.look(tensor)) : std::nullopt;
  for (SavedTensor* const saved : saved_.bound) {
    if (values_.address(saved->view.value) != storage) continue;
    if (view && !calls_.geometry().overlap(saved->view, *view)) continue;
    if (version == Version::Unknown && !flow().is_leaf(saved->view.value)) continue;
    if (version == Version::Rises) {
      saved->written_over = true;
    } else {
      saved->written = tensor.storage();
    }
  }
}

at::Tensor Tape::original_of(const SavedTensor& saved) const {
  at::Tensor original = saved.kept_tensor.defined() ? saved.kept_tensor : at::Tensor(saved.tensor.lock());
  if (saved.stands_for != StandsFor::Value || !original.defined()) return {};
  const plan::ValueId value = saved.view.value;
  const bool is_there = (values_.in_programs_storage(value) || values_.programs_storage(value)) &&
                        calls_.geometry().shows(saved.view, original) &&
                        original.storage().unsafeGetStorageImpl() == values_.address(value);
  return is_there ? original : at::Tensor();
}

/// The leaf has been written. A tensor that was saved may get a graph by that, which leads back to what saved it and
/// would keep itself alive.
void Tape::let_go_originals(plan::ValueId leaf, std::vector<at::Tensor>& let_go) {
  if (ledger().packs(leaf) == 0) return;
  for (SavedTensor* const saved : saved_.bound) {
    if (saved->view.value == leaf && saved->kept_tensor.defined())
      let_go.push_back(std::exchange(saved->kept_tensor, at::Tensor()));
  }
}

at::Tensor Tape::hand_out(SavedTensor& saved, const c10::Storage& storage) {
  // A tensor with a gradient of its own would be copied by autograd, with what belongs to it.
  if (at::Tensor original = original_of(saved); original.defined() && !original.requires_grad()) return original;
  at::Tensor tensor = calls_.geometry().tensor(saved.view, storage);
  const plan::ValueId value = saved.view.value;
  if (saved.written) {
    saved.version.count_writes_of(tensor);
    return tensor;
  }
  if (saved.stands_for == StandsFor::Image) {
    values_.images().count_writes_of(value, tensor);
    return tensor;
  }
  if (storage.unsafeGetStorageImpl() == values_.address(value)) {  // the program's
    saved.version.count_writes_of(tensor);
  } else {
    values_.count_writes_of(value, tensor);
  }
  return tensor;
}

/// Whether replays can recompute the value of a finished tape. Takes absent leaves from the program where it has them.
bool Tape::can_be_made_again(plan::ValueId value) {
  for (plan::ValueId leaf = 0; leaf < value; ++leaf) {
    if (flow().is_leaf(leaf) && !ledger().at_hand(leaf) && !lookup_.written_since(leaf)) values_.hold_again(leaf);
  }
  const plan::OpId producer = flow().producer(value);
  if (producer == plan::kNoOp) return false;
  return std::isfinite(ledger().recovery_seconds([](plan::OpId) { return 1.0; })[plan::at(producer)]);
}

bool Tape::drop_if_spoilt(plan::ValueId value) {
  const bool is_programs = values_.in_programs_storage(value);
  const bool is_spoilt = is_programs ? lookup_.written_since(value) || values_.shrunk(value) : values_.spoilt(value);
  // Of leaves in the program's storage ValueLookup::check_inputs tells.
  if (!ledger().resident(value) || !is_spoilt || (is_programs && flow().is_leaf(value))) return false;
  if (!ledger().fetchable(value)) {
    if (!can_be_made_again(value)) {
      throw Error(fmt::format(
          "backward: {} was written in place, or freed, since an operator saved it or a node got it; other gradients "
          "depend on it, and it cannot be recomputed: let what writes to it, such as a node's backward, work on a "
          "clone",
          lookup_.name_of(value)));
    }
  }
  values_.evict(value);
  return true;
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
  if (!values_.all_written(value)) return StandsFor::Value;  // numbers of no meaning would have a say in the others
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
  // First: binding may throw.
  const auto rest = std::ranges::stable_partition(waiting_, [&](const SavedTensor* saved) {
    return std::ranges::find(written, saved->storage.unsafeGetStorageImpl()) != written.end();
  });
  const std::vector<SavedTensor*> bound(rest.begin(), rest.end());
  waiting_.erase(rest.begin(), rest.end());
  bind_each(bound);
}

void Tape::bind_all() {
  const PatientLock lock(mutex_);
  versions_.settle();
  bind_each(std::exchange(waiting_, {}));
}

void Tape::bind_each(const std::vector<SavedTensor*>& saved) {
  for (std::size_t i = 0; i < saved.size(); ++i) {
    try {
      bind(*saved[i]);
    } catch (...) {  // the others wait on
      waiting_.insert(waiting_.end(), saved.begin() + static_cast<std::ptrdiff_t>(i) + 1, saved.end());
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
  saved.handed_out = at::Tensor();  // first: then the storage is the tape's alone, and what that frees is seen
  saved.kept_tensor = at::Tensor();
  saved.written = c10::Storage();
  const auto count = saved_.count.find(values_.address(saved.view.value));
  if (--count->second == 0) saved_.count.erase(count);
  values_.release(saved.view.value, unpacked_in, saved.stands_for);
  observers_.tell_recording(&TapeObserver::release_ends);
  saved_.bound[saved.place] = saved_.bound.back();
  saved_.bound[saved.place]->place = saved.place;
  saved_.bound.pop_back();
  if (saved_.bound.empty() && finished()) calls_.forget_draws();
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
