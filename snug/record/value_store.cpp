#include "snug/record/value_store.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "snug/memory/byte_tensor.h"
#include "snug/record/aside_scope.h"
#include "snug/record/recording_key.h"

namespace snug::record {

ValueStore::ValueStore(TapeMutex& mutex, const TapeObservers& observers, StreamOrder& streams)
    : mutex_(mutex),
      observers_(observers),
      ledger_(flow_, [this](plan::ValueId value) { let_go(value); }),
      moved_(streams),
      images_(mutex, observers) {
  constexpr std::size_t kTypicalValues = 1024;
  values_.reserve(kTypicalValues);
  current_.reserve(kTypicalValues);
}

// --- values --------------------------------------------------------------------------------------------------------

void ValueStore::add(plan::ValueId value, const c10::Storage& storage) {
  values_.resize(plan::at(value) + 1);
  Value& v = at(value);
  v.identity = storage.getWeakStorageImpl();
  v.nbytes = static_cast<Bytes>(storage.nbytes());
  v.device = storage.device();
  current_[storage.unsafeGetStorageImpl()] = value;
}

void ValueStore::mark_leaf(plan::ValueId value) {
  at(value).leaf = true;
  at(value).copied = false;
}

plan::ValueId ValueStore::add_leaf(const c10::Storage& storage) {
  const plan::ValueId value = flow_.add_leaf();
  add(value, storage);
  at(value).was_there = true;
  mark_leaf(value);
  hold_leaf(value, storage);
  return value;
}

plan::ValueId ValueStore::add_output(const c10::Storage& storage, plan::ValueId overwrites) {
  const plan::ValueId value = flow_.add_output(overwrites);
  add(value, storage);
  at(value).was_there = overwrites != plan::kNoValue && at(overwrites).was_there;
  return value;
}

void ValueStore::set_saved_as(plan::ValueId value, c10::ScalarType type) {
  std::optional<c10::ScalarType>& as = at(value).saved_as;
  as = as.value_or(type) == type ? type : c10::ScalarType::Undefined;
}

void ValueStore::make_leaf(plan::ValueId value) {
  flow_.make_leaf(value);
  mark_leaf(value);
  at(value).unfilled = false;
  at(value).of_result = true;
}

// --- contents: each sets the storage and tells the ledger ------------------------------------------------------------

void ValueStore::hold(plan::ValueId value, const c10::Storage& storage) {
  at(value).storage = storage;
  ledger_.hold(value);
  if (!flow_.is_leaf(value)) held_results_.push_back(value);
}

void ValueStore::cache(plan::ValueId value, c10::Storage storage) {
  at(value).storage = std::move(storage);
  writes_.erase(value);
  ledger_.cache(value);
}

c10::Storage ValueStore::take(plan::ValueId value) {
  moved_.lose(value);
  ledger_.lose(value);
  return std::exchange(at(value).storage, c10::Storage());
}

void ValueStore::discard(plan::ValueId value) {
  ledger_.lose(value);
  let_go(value);
}

void ValueStore::offload(plan::ValueId value, const c10::Storage& storage, OnTheWay on_the_way) {
  Value& v = at(value);
  v.away.reset();  // once, if at all
  const std::vector<plan::ValueId> too_many = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
    return moved_.send(value, storage, v.nbytes, on_the_way);
  }();
  offloaded_bytes_ += v.nbytes;
  v.copied = true;
  ledger_.offload(value);
  let_go(value);
  for (const plan::ValueId other : too_many) gone(other);
}

void ValueStore::compress(plan::ValueId value, const c10::Storage& storage, const plan::Encoding& encoding) {
  Value& v = at(value);
  v.away.reset();
  moved_.keep(value, [&] {
    const AsideScope aside(mutex_, observers_);
    return MovedContents::compressed(storage, v.nbytes, encoding);
  }());
  compressed_bytes_ += v.nbytes;
  ledger_.offload(value);
  let_go(value);
}

void ValueStore::make_image(plan::ValueId value, const c10::Storage& storage, const plan::Encoding& encoding) {
  images_.add(value, storage, at(value).nbytes, encoding);
  at(value).away.reset();
}

plan::Encodings ValueStore::encodings(plan::ValueId value) const {
  plan::Encodings encodings;
  if (const auto moved = moved_.encoding(value)) encodings.push_back(*moved);
  if (images_.has(value)) encodings.push_back(images_.encoding(value));
  return encodings;
}

void ValueStore::give_up(plan::ValueId value) {
  const Bytes freed = moved_.compressed_to(value);
  ledger_.give_up(value);
  moved_.forget(value);
  observers_.tell_recording(&TapeObserver::dropped, value, std::optional(freed));
}

Bytes ValueStore::gone(plan::ValueId value) {
  const auto [storage, lost] = moved_.gone(value);
  if (lost) {
    take_back(value, storage);
    return 0;
  }
  return storage && storage.use_count() == 1 ? static_cast<Bytes>(storage.nbytes()) : 0;
}

/// It is in the storage that it was to leave.
void ValueStore::take_back(plan::ValueId value, const c10::Storage& storage) {
  moved_.lose(value);
  moved_.forget(value);
  offloaded_bytes_ -= at(value).nbytes;
  at(value).copied = false;
  ledger_.take_back(value);
  hold(value, storage);
}

void ValueStore::all_gone() {
  for (const plan::ValueId value : moved_.on_their_way()) gone(value);
}

bool ValueStore::do_without(plan::ValueId value) {
  if (const c10::Storage storage = moved_.gone(value).storage) {
    take_back(value, storage);
    return true;
  }
  moved_.lose(value);
  if (flow_.is_leaf(value) || !ledger_.fetchable(value)) return false;
  const std::vector<double> steps = ledger_.recovery_seconds([](plan::OpId) { return 1.0; });
  if (!std::isfinite(steps[plan::at(flow_.producer(value))])) return false;
  if (ledger_.resident(value)) ledger_.evict(value);
  ledger_.give_up(value);
  moved_.forget(value);
  at(value).copied = false;
  return true;
}

Bytes ValueStore::all_gone_from(c10::Device device) {
  Bytes freed = 0;
  for (const plan::ValueId value : moved_.on_their_way())
    freed += at(value).device == device && value != fetching_ ? gone(value) : 0;
  return freed;
}

c10::Storage ValueStore::fetch(plan::ValueId value) {
  memory::Offloaded::Arriving arriving = [&] {
    struct Reading {
      plan::ValueId& which;
      plan::ValueId before;
      ~Reading() { which = before; }
    } const reading{fetching_, std::exchange(fetching_, value)};
    const auto fetch = moved_.fetch(value);
    const TapeMutex::Lent lent(mutex_);  // to who may give up others
    return fetch();
  }();
  moved_.arrives(value, at(value).device, std::move(arriving.there));
  return std::move(arriving.storage);
}

void ValueStore::copy_before_write(plan::ValueId value) {
  Value& v = at(value);
  if (v.copied || !v.storage) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor whole = memory::byte_tensor(v.storage, v.nbytes);
  c10::Storage copy = [&] {
    const TapeMutex::Lent lent(mutex_);
    return whole.clone().storage();
  }();
  v.storage = std::move(copy);
  writes_.erase(value);
  v.copied = true;
}

void ValueStore::count_writes_of(plan::ValueId value, const at::Tensor& tensor) {
  writes_[value].count_writes_of(tensor);
}

c10::Storage ValueStore::programs_storage(plan::ValueId value) const {
  const Value& v = at(value);
  if (v.copied && !ledger_.fetchable(value)) return {};  // overwritten since it was copied
  c10::Storage storage(v.identity.lock());
  const bool is_there =
      storage && static_cast<Bytes>(storage.nbytes()) == v.nbytes && in(storage.unsafeGetStorageImpl()) == value;
  return is_there ? std::move(storage) : c10::Storage();
}

bool ValueStore::hold_again(plan::ValueId leaf) {
  const bool is_absent = at(leaf).leaf && !at(leaf).storage && !ledger_.fetchable(leaf);
  c10::Storage storage = is_absent ? programs_storage(leaf) : c10::Storage();
  if (!storage) return false;
  hold(leaf, storage);
  return true;
}

/// The ledger has dropped it, or has been told that it is absent.
void ValueStore::let_go(plan::ValueId value) {
  c10::Storage& storage = at(value).storage;
  if (!storage) return;
  moved_.lose(value);
  std::optional<Bytes> freed;
  if (observers_.any_sees_recording() && storage.use_count() == 1) freed = static_cast<Bytes>(storage.nbytes());
  storage = c10::Storage();
  observers_.tell_recording(&TapeObserver::dropped, value, freed);
}

std::span<const plan::ValueId> ValueStore::held_results() {
  std::erase_if(held_results_, [&](plan::ValueId value) { return flow_.is_leaf(value) || !ledger_.held(value); });
  return held_results_;
}

bool ValueStore::only_ours(plan::ValueId value) const {
  const c10::Storage& storage = at(value).storage;
  return storage && storage.use_count() == 1;
}

bool ValueStore::program_let_go(plan::ValueId value) const {
  return at(value).identity.use_count() <= (at(value).storage ? 1U : 0U) + (moved_.leaving(value) ? 1U : 0U);
}

// --- need ----------------------------------------------------------------------------------------------------------

void ValueStore::pack(plan::ValueId value, StandsFor what) {
  what == StandsFor::Image ? images_.pack(value) : ledger_.pack(value);
}

void ValueStore::consume(plan::ValueId value, StandsFor what) {
  what == StandsFor::Image ? images_.consume(value) : ledger_.consume(value);
}

plan::Residency ValueStore::residency(plan::ValueId value, StandsFor what) const {
  if (what == StandsFor::Value) return ledger_.residency(value);
  return images_.decoded(value) ? plan::Residency::Cached : plan::Residency::Absent;
}

void ValueStore::release(plan::ValueId value, int unpacked_in, StandsFor what) {
  const bool now = unpacked_in != kNoPass && unpacked_in == pass_;
  const plan::Unpacked unpacked = now ? plan::Unpacked::Now : plan::Unpacked::Not;
  if (what == StandsFor::Image) return images_.release(value, unpacked);
  ledger_.release(value, unpacked);
  if (ledger_.settled() && ledger_.useless(value) && moved_.forget(value)) ledger_.forget(value);
}

bool ValueStore::enter_pass(int pass) {
  if (pass_ == pass) return false;
  pass_ = pass;
  ledger_.begin_pass();
  images_.begin_pass();
  return true;
}

void ValueStore::end_pass() {
  ledger_.end_pass();
  images_.end_pass();
}

void ValueStore::forget_unneeded() {
  moved_.forget_if([&](plan::ValueId value) {
    if (!ledger_.useless(value)) return false;
    ledger_.forget(value);
    return true;
  });
}

void ValueStore::settle(plan::Leaves leaves) {
  ledger_.settle(leaves);
  images_.settle();
  forget_unneeded();
}

// --- accounts ------------------------------------------------------------------------------------------------------

std::vector<c10::Storage> ValueStore::leaf_storages() const {
  std::vector<c10::Storage> storages;
  for (const Value& v : values_) {
    if (v.leaf && v.storage) storages.push_back(v.storage);
  }
  return storages;
}

bool ValueStore::resized(plan::ValueId value) const {
  const Value& v = at(value);
  return v.leaf && !copied(value) && v.storage && static_cast<Bytes>(v.storage.nbytes()) != v.nbytes;
}

bool ValueStore::made(c10::StorageImpl* storage) const {
  const auto is_leaf = [&](const Value& v) { return v.leaf && v.identity._unsafe_get_target() == storage; };
  return in(storage) != plan::kNoValue && std::ranges::none_of(values_, is_leaf);
}

}  // namespace snug::record
