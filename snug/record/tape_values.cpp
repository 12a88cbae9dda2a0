// What the tape knows of values: which one a storage holds now, and where its contents are.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "snug/base/errors.h"
#include "snug/record/profiler.h"
#include "snug/record/recording.h"
#include "snug/record/tape.h"

namespace snug::record {

Tape::ValueState& Tape::state(plan::ValueId value) {
  if (at(value) >= values_.size()) values_.resize(at(value) + 1);
  return values_[at(value)];
}

plan::ValueId Tape::new_leaf(const at::Tensor& tensor) {
  const plan::ValueId value = flow_.add_leaf();
  ValueState& s = state(value);
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  s.identity = tensor.storage().getWeakStorageImpl();
  s.nbytes = static_cast<Bytes>(tensor.storage().nbytes());
  s.device = tensor.storage().device();
  s.leaf = static_cast<std::int32_t>(leaves_.size());
  Leaf leaf{tensor.unsafeGetTensorImpl()->version_counter(), 0, false, false, {}};
  leaf.versioned = leaf.version.enabled();
  if (leaf.versioned) leaf.seen = leaf.version.current_version();
  leaves_.push_back(std::move(leaf));
  current_[impl] = value;
  hold(value, tensor.storage());
  return value;
}

/// Whether something that is not recorded has written it: it has other contents now, and is another value.
bool Tape::written_since(plan::ValueId value) const {
  const ValueState& s = values_[at(value)];
  if (s.leaf >= 0) {
    const Leaf& leaf = leaves_[at(s.leaf)];
    return leaf.versioned && leaf.version.current_version() != leaf.seen;
  }
  return s.versioned && !s.uninitialized && s.version.current_version() != s.seen;
}

/// The version of what an operator wrote is raised after its kernel, unless it was called below of where that happens.
void Tape::settle_versions() {
  for (const auto& [value, raises] : unsettled_) {
    ValueState& s = values_[at(value)];
    if (!s.versioned) continue;
    const std::uint32_t now = s.version.current_version();
    if (now - s.seen <= raises) s.seen = now;
  }
  unsettled_.clear();
}

/// The contents that an operator made are no longer where it made them.
void Tape::lose_contents(plan::ValueId value) {
  ledger_.lose(value);
  values_[at(value)].storage = c10::Storage();
}

plan::ValueId Tape::value_of(const at::Tensor& tensor) {
  const auto found = current_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == current_.end()) return new_leaf(tensor);
  const plan::ValueId value = found->second;
  if (written_since(value)) {
    displace(value);
    return new_leaf(tensor);
  }
  if (flow_.is_leaf(value) && !ledger_.held(value) && !ledger_.offloaded(value)) hold(value, tensor.storage());
  return value;
}

/// Something that is not recorded has written over it.
void Tape::displace(plan::ValueId value) {
  if (flow_.is_leaf(value)) return;
  opaque_.push_back({describe(flow_.producer(value)), nbytes(value)});
  lose_contents(value);
}

plan::ValueId Tape::read(const at::Tensor& tensor, bool written) {
  const plan::ValueId value = value_of(tensor);
  ValueState& s = values_[at(value)];
  s.read = true;
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  const bool versioned = version.enabled();
  const std::uint32_t seen = versioned ? version.current_version() : 0;
  if (s.uninitialized) {
    // What an operator fills in part is no riddle.
    make_opaque(value, version, seen, versioned, /*reported=*/!written);
    hold(value, tensor.storage());
  } else if (!ledger_.held(value) && escapes(value)) {
    keep(value, tensor.storage(), version, seen, versioned);
  }
  return value;
}

View Tape::view_of(const at::Tensor& tensor, plan::ValueId value) {
  View view = geometry_.add(tensor);
  view.value = value;
  return view;
}

void Tape::hold(plan::ValueId value, const c10::Storage& storage) {
  state(value).storage = storage;
  ledger_.hold(value);
}

/// A replay will need it: it is held, or leaves the device's memory.
void Tape::keep(plan::ValueId value, const c10::Storage& storage, const c10::VariableVersion& version,
                std::uint32_t seen, bool versioned) {
  ValueState& s = state(value);
  if (!std::exchange(s.offloads, false)) return hold(value, storage);
  try {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
    offloaded_.emplace(value, memory::Offloaded(storage, s.nbytes, spill_file_));
  } catch (...) {
    failure_ = std::current_exception();  // of the operator that runs, if any
    return hold(value, storage);
  }
  offloaded_bytes_ += s.nbytes;
  if (!flow_.is_leaf(value)) {
    flow_.make_leaf(value);
    s.leaf = static_cast<std::int32_t>(leaves_.size());
    leaves_.push_back({version, seen, versioned, false, {}});
  }
  leaves_[at(s.leaf)].snapshot = true;
  ledger_.offload(value);
}

void Tape::load(plan::ValueId value) { put(value, offloaded_.at(value).load()); }

/// It is read, and something that is not recorded must have filled it.
void Tape::make_opaque(plan::ValueId value, const c10::VariableVersion& version, std::uint32_t seen, bool versioned,
                       bool reported) {
  ValueState& s = values_[at(value)];
  s.uninitialized = false;
  if (reported) opaque_.push_back({describe(flow_.producer(value)), s.nbytes});
  flow_.make_leaf(value);
  s.leaf = static_cast<std::int32_t>(leaves_.size());
  leaves_.push_back({version, seen, versioned, false, {}});
}

void Tape::written_elsewhere(c10::StorageImpl* storage) {
  const std::lock_guard lock(mutex_);
  if (outer_ != nullptr) outer_->written_elsewhere(storage);
  bind_all();
  const auto known = current_.find(storage);
  if (known == current_.end()) return;
  const plan::ValueId value = known->second;
  // Leaves are told apart by their versions.
  if (flow_.is_leaf(value) && !ledger_.offloaded(value)) return;
  current_.erase(known);
  if (!ledger_.offloaded(value)) lose_contents(value);  // else its contents are elsewhere
}

void Tape::dropped(plan::ValueId value) {
  c10::Storage& storage = values_[at(value)].storage;
  const bool frees = profiler_ != nullptr && storage && storage.use_count() == 1;
  const auto bytes = frees ? static_cast<Bytes>(storage.nbytes()) : Bytes{0};
  storage = c10::Storage();
  if (frees) profiler_->tape_freed(bytes);
}

void Tape::put(plan::ValueId value, c10::Storage storage) {
  state(value).storage = std::move(storage);
  ledger_.cache(value);
  if (verify_ != VerifyReplay::Off) check_contents(value);
}

c10::Storage Tape::take(plan::ValueId value) {
  ledger_.lose(value);
  return std::exchange(values_[at(value)].storage, c10::Storage());
}

bool Tape::only_ours(plan::ValueId value) const {
  const c10::Storage& storage = values_[at(value)].storage;
  return storage && storage.use_count() == 1;
}

bool Tape::program_let_go(plan::ValueId value) const {
  const ValueState& s = values_[at(value)];
  return s.identity.use_count() <= (s.storage ? 1U : 0U);
}

void Tape::evict(plan::ValueId value) {
  if (verify_ != VerifyReplay::Off) remember(value, storage(value));
  ledger_.evict(value);
  ++evictions_;
}

void Tape::check_inputs(plan::OpId op) const {
  const auto refuse = [&](plan::ValueId input, std::uint32_t then, std::uint32_t now) {
    throw Error(fmt::format(
        "replay: {} reads {}, which was modified in place after it was recorded (version {} then, {} now): its "
        "gradient would be wrong; modify it after backward, or keep what depends on it in a snug::Region(Keep)",
        describe(op), name_of(input), then, now));
  };
  for (plan::ValueId input : flow_.inputs(op)) {
    const ValueState& s = values_[at(input)];
    if (s.leaf >= 0) {
      const Leaf& leaf = leaves_[at(s.leaf)];
      if (leaf.versioned && !leaf.snapshot && leaf.version.current_version() != leaf.seen)
        refuse(input, leaf.seen, leaf.version.current_version());
    } else if (finished() && s.versioned && ledger_.held(input) && s.version.current_version() != s.seen) {
      // The program's own storage, and not one that a replay made.
      refuse(input, s.seen, s.version.current_version());
    }
  }
}

std::vector<c10::Storage> Tape::leaf_storages() const {
  std::vector<c10::Storage> storages;
  for (const ValueState& s : values_) {
    if (s.leaf >= 0 && s.storage) storages.push_back(s.storage);
  }
  return storages;
}

std::vector<std::pair<c10::Storage, c10::Storage>> Tape::overwritten_leaves() const {
  std::vector<std::pair<c10::Storage, c10::Storage>> pairs;
  for (const ValueState& s : values_) {
    if (s.leaf >= 0 && leaves_[at(s.leaf)].original) pairs.emplace_back(leaves_[at(s.leaf)].original, s.storage);
  }
  return pairs;
}

}  // namespace snug::record
