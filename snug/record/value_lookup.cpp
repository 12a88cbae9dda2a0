#include "snug/record/value_lookup.h"

#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/record/contents_hash.h"
#include "snug/record/leaf_names.h"

namespace snug::record {

bool ValueLookup::written_since(plan::ValueId value) const {
  return !values_.unfilled(value) && versions_.raised(value);
}

/// Whether its memory has changed without a version's rising.
bool ValueLookup::refilled(plan::ValueId value, const c10::Storage& storage) const {
  if (storage.nbytes() == 0) return false;  // freed, as weights that are gathered again: see UnshardedWeights
  const auto sample = samples_.find(value);
  return sample != samples_.end() && contents_sample(storage) != sample->second;
}

bool ValueLookup::is_being_filled(const c10::Storage& storage) const {
  return !being_filled_.empty() && being_filled_.find(storage.unsafeGetStorageImpl()) != being_filled_.end();
}

void ValueLookup::being_filled(const c10::Storage& storage) {
  being_filled_.emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
}

void ValueLookup::filled(const c10::Storage& storage) {
  c10::StorageImpl* const key = storage.unsafeGetStorageImpl();
  if (being_filled_.erase(key) == 0) return;
  if (const plan::ValueId value = values_.in(key); value != plan::kNoValue) versions_.look_again(value);
}

void ValueLookup::watch(plan::ValueId leaf, const c10::Storage& storage) {
  if (samples_.find(leaf) != samples_.end() || is_being_filled(storage)) return;
  if (const auto sample = contents_sample(storage)) samples_.emplace(leaf, *sample);
}

/// Whether what `reader` counts the writes of still is the value. Of a result, a counter that is new to the tape, and
/// not new, may have counted anything; a leaf is there as it is now.
bool ValueLookup::accepts(plan::ValueId value, const VersionNow& reader) {
  if (values_.unfilled(value) || versions_.find(value, reader) != nullptr) return true;
  if (reader.seen() != 0 && !values_.flow().is_leaf(value)) return false;
  versions_.add(value, SeenVersion(reader));
  return true;
}

/// Leaves are the program's, and what has left the device's memory is elsewhere.
bool ValueLookup::can_be_lost(plan::ValueId value) const {
  return !values_.flow().is_leaf(value) && !values_.ledger().fetchable(value);
}

plan::ValueId ValueLookup::value_of(const c10::Storage& storage, const VersionNow& reader) {
  const plan::ValueId before = values_.in(storage.unsafeGetStorageImpl());
  if (before == plan::kNoValue) {
    const plan::ValueId leaf = values_.add_leaf(storage);
    versions_.set(leaf, SeenVersion(reader));
    return leaf;
  }
  const bool is_as_it_was = !written_since(before) && !refilled(before, storage) && accepts(before, reader);
  if (!is_as_it_was && !is_being_filled(storage)) {
    values_.gone(before);  // a copy that goes on reads what the next operator may write
    if (can_be_lost(before)) report(before, Opaque::Case::WrittenOver);
    displace(before);
    const plan::ValueId leaf = values_.add_leaf(storage);
    versions_.set(leaf, SeenVersion(reader));
    versions_.inherit(leaf, before);
    if (values_.of_result(before)) values_.set_of_result(leaf);
    return leaf;
  }
  const plan::Ledger& ledger = values_.ledger();
  if (values_.flow().is_leaf(before) && !ledger.held(before) && !ledger.fetchable(before))
    values_.hold_leaf(before, storage);
  return before;
}

void ValueLookup::make_leaf(plan::ValueId value, const VersionNow& reader) {
  values_.make_leaf(value);
  versions_.replace(value, SeenVersion(reader));
}

void ValueLookup::report(plan::ValueId value, Opaque::Case what) {
  opaque_.push_back({calls_.describe(values_.flow().producer(value)), values_.nbytes(value), what});
}

void ValueLookup::displace(plan::ValueId value) {
  if (!can_be_lost(value)) return;
  observers_.tell_recording(&TapeObserver::displaced, value);
  values_.discard(value);
}

void ValueLookup::notice_writes() {
  versions_.settle();
  for (const plan::ValueId value : values_.held_results()) {
    if (values_.ledger().held(value) && written_since(value)) displace(value);
  }
}

void ValueLookup::check_inputs(plan::OpId op) const {
  const plan::Ledger& ledger = values_.ledger();
  for (const plan::ValueId input : values_.flow().inputs(op)) {
    if (values_.resized(input)) {
      throw Error(fmt::format(
          "replay: {} reads {}, whose storage had {} when it was recorded and has {} now; what is freed before "
          "backward cannot be read again: keep what depends on it in a snug::Region(Keep)",
          calls_.describe(op), name_of(input), format_bytes(values_.nbytes(input)),
          format_bytes(static_cast<Bytes>(values_.storage(input).nbytes()))));
    }
    // In a copy, or in a storage that a replay made, and not in the program's.
    const bool ours = values_.flow().is_leaf(input) ? values_.copied(input)
                                                    : !ledger.held(input) || !values_.in_programs_storage(input);
    if (ours) continue;
    if (written_since(input)) {
      const SeenVersion& version = versions_.of(input);
      throw Error(fmt::format(
          "replay: {} reads {}, which was modified in place after it was recorded (version {} then, {} now): its "
          "gradient would be wrong; modify it after backward, or keep what depends on it in a snug::Region(Keep)",
          calls_.describe(op), name_of(input), version.seen(), version.now()));
    }
    if (refilled(input, values_.storage(input))) {
      throw Error(fmt::format(
          "replay: {} reads {}, whose memory was written after it was recorded by something that PyTorch does not see, "
          "as NumPy does, or batch norm in training mode outside of the region: its gradient would be wrong; write it "
          "after backward, or give the step a copy of it (clone)",
          calls_.describe(op), name_of(input)));
    }
  }
}

std::string ValueLookup::name_of(plan::ValueId value) const {
  const std::string name = leaf_name(values_.address(value), values_.nbytes(value));
  const plan::OpId producer = values_.flow().producer(value);
  return producer == plan::kNoOp ? name : fmt::format("{}, a result of {}", name, calls_.call(producer).traits->name);
}

}  // namespace snug::record
