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
  s.version = SeenVersion(tensor);
  leaves_.emplace_back();
  current_[impl] = value;
  hold(value, tensor.storage());
  return value;
}

// --- versions ------------------------------------------------------------------------------------------------------

/// Whether something that is not recorded has written it: it has other contents now, and is another value.
bool Tape::written_since(plan::ValueId value) const {
  const ValueState& s = values_[at(value)];
  if (s.leaf < 0 && s.uninitialized) return false;
  if (s.version.raised()) return true;
  if (other_versions_.empty()) return false;
  const auto others = other_versions_.find(value);
  return others != other_versions_.end() && std::ranges::any_of(others->second, &SeenVersion::raised);
}

/// Whether what `reader` counts the writes of still is the value. Of a result, a counter that is new to the tape, and
/// not new, may have counted anything; a leaf is there as it is now.
bool Tape::accepts(plan::ValueId value, const SeenVersion& reader) {
  const ValueState& s = values_[at(value)];
  if ((s.leaf < 0 && s.uninitialized) || find_version(value, reader) != nullptr) return true;
  if (reader.seen() != 0 && s.leaf < 0) return false;
  auto& others = other_versions_[value];
  std::erase_if(others, [](const SeenVersion& v) { return v.alone() && !v.raised(); });
  others.push_back(reader);
  return true;
}

/// `value` has taken the place of `before` in a storage: whatever counted that one's writes counts its own.
void Tape::inherit_versions(plan::ValueId value, plan::ValueId before) {
  const auto known = other_versions_.find(before);
  std::vector<SeenVersion> all = known != other_versions_.end() ? known->second : std::vector<SeenVersion>();
  all.push_back(values_[at(before)].version);
  const SeenVersion& main = values_[at(value)].version;
  std::erase_if(all, [&](const SeenVersion& v) { return v.same_counter(main) || v.same_counter({}) || v.alone(); });
  if (all.empty()) return;
  for (SeenVersion& v : all) v.look_again();
  other_versions_[value] = std::move(all);
}

/// From now on the value's writes are told by `version`, and by what told of them before.
void Tape::set_version(plan::ValueId value, const SeenVersion& version) {
  const SeenVersion before = std::exchange(values_[at(value)].version, version);
  if (!before.same_counter(version) && !before.same_counter({})) other_versions_[value].push_back(before);
}

/// The counter among those of the value's writes; null when the tape has not met it there.
SeenVersion* Tape::find_version(plan::ValueId value, const SeenVersion& counter) {
  if (SeenVersion& main = values_[at(value)].version; main.same_counter(counter)) return &main;
  const auto others = other_versions_.find(value);
  if (others == other_versions_.end()) return nullptr;
  const auto found =
      std::ranges::find_if(others->second, [&](const SeenVersion& v) { return v.same_counter(counter); });
  return found == others->second.end() ? nullptr : &*found;
}

/// One more raise of that counter is expected, among those from the `first` on.
void Tape::expect_raise(std::vector<ExpectedRaise>& all, std::size_t first, plan::ValueId value,
                        const SeenVersion& counter) {
  for (std::size_t i = first; i < all.size(); ++i) {
    if (all[i].counter.same_counter(counter)) {
      ++all[i].raises;
      return;
    }
  }
  all.push_back({value, counter, 1});
}

/// The version of what an operator wrote is raised after its kernel, unless it was called below of where that happens.
void Tape::settle_versions() {
  for (const ExpectedRaise& expected : unsettled_) {
    if (SeenVersion* version = find_version(expected.value, expected.counter)) version->settle(expected.raises);
  }
  unsettled_.clear();
}

/// The operator raised the versions of what it is going to write before the tape saw the call.
void Tape::excuse(const OperatorTraits& traits, const c10::IValue* arguments) {
  std::vector<ExpectedRaise> raised;
  const auto add = [&](const at::Tensor& tensor) {
    if (!is_plain(tensor)) return;
    const auto found = current_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == current_.end()) return;
    expect_raise(raised, 0, found->second, SeenVersion(tensor));
  };
  for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
    if (traits.writes[i]) for_each_stored(arguments[i], add);
  }
  for (const ExpectedRaise& r : raised) {
    if (SeenVersion* version = find_version(r.value, r.counter)) {
      version->settle(r.raises);
    } else if (r.counter.seen() <= r.raises) {
      other_versions_[r.value].push_back(r.counter);
    }
  }
}

/// Something that is not recorded has written over it.
void Tape::displace(plan::ValueId value, bool reported) {
  if (flow_.is_leaf(value) || ledger_.fetchable(value)) return;
  if (reported) opaque_.push_back({describe(flow_.producer(value)), nbytes(value), Opaque::Case::WrittenOver});
  if (profiler_ != nullptr) profiler_->displaced(value);
  ledger_.lose(value);
  dropped(value);
}

void Tape::notice_writes() {
  settle_versions();
  std::erase_if(held_results_, [&](plan::ValueId value) {
    if (flow_.is_leaf(value) || !ledger_.held(value)) return true;
    if (!written_since(value)) return false;
    displace(value, /*reported=*/false);
    return true;
  });
}

// --- contents ------------------------------------------------------------------------------------------------------

/// Whether an operator made the storage, be it that something unseen has written it since.
bool Tape::is_of_result(plan::ValueId value) const {
  return flow_.producer(value) != plan::kNoOp || values_[at(value)].of_result;
}

plan::ValueId Tape::value_of(const at::Tensor& tensor) {
  const auto found = current_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == current_.end()) return new_leaf(tensor);
  const plan::ValueId value = found->second;
  if (written_since(value) || !accepts(value, SeenVersion(tensor))) {
    const bool of_result = is_of_result(value);
    displace(value, /*reported=*/true);
    const plan::ValueId leaf = new_leaf(tensor);
    inherit_versions(leaf, value);
    values_[at(leaf)].of_result = of_result;
    return leaf;
  }
  if (flow_.is_leaf(value) && !ledger_.held(value) && !ledger_.fetchable(value)) hold(value, tensor.storage());
  return value;
}

plan::ValueId Tape::read(const at::Tensor& tensor, bool written) {
  const plan::ValueId value = value_of(tensor);
  ValueState& s = values_[at(value)];
  s.read = true;
  if (s.uninitialized) {
    // What an operator fills in part is no riddle.
    make_opaque(value, SeenVersion(tensor), /*reported=*/!written);
    hold(value, tensor.storage());
  } else if (!ledger_.held(value) && !ledger_.fetchable(value) && escapes(value)) {
    keep(value, tensor.storage());
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
  if (!flow_.is_leaf(value)) held_results_.push_back(value);
}

/// A replay will need it: it is held, or leaves the device's memory.
void Tape::keep(plan::ValueId value, const c10::Storage& storage) {
  ValueState& s = state(value);
  if (!std::exchange(s.moves, false)) return hold(value, storage);
  try {
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
    offloaded_.emplace(value, memory::Offloaded(storage, s.nbytes, spill_file_));
  } catch (...) {
    failure_ = std::current_exception();  // of the operator that runs, if any
    return hold(value, storage);
  }
  offloaded_bytes_ += s.nbytes;
  if (s.leaf >= 0) leaves_[at(s.leaf)].snapshot = true;
  ledger_.offload(value);
}

/// Lets go of the contents that nobody will fetch.
void Tape::forget_offloaded() {
  std::erase_if(offloaded_, [&](const auto& entry) {
    if (!ledger_.useless(entry.first)) return false;
    ledger_.forget(entry.first);
    return true;
  });
}

void Tape::load(plan::ValueId value) {
  put(value, [&] {
    const TapeMutex::Lent lent(mutex_);
    return offloaded_.at(value).load();
  }());
}

/// It is read, and something that is not recorded must have filled it.
void Tape::make_opaque(plan::ValueId value, const SeenVersion& version, bool reported) {
  ValueState& s = values_[at(value)];
  s.uninitialized = false;
  if (reported) opaque_.push_back({describe(flow_.producer(value)), s.nbytes, Opaque::Case::Filled});
  flow_.make_leaf(value);
  s.leaf = static_cast<std::int32_t>(leaves_.size());
  s.of_result = true;
  set_version(value, version);
  leaves_.emplace_back();
}

void Tape::written_elsewhere(c10::StorageImpl* storage) {
  const std::lock_guard lock(mutex_);
  if (outer_ != nullptr) outer_->written_elsewhere(storage);
  bind_all();
  const auto known = current_.find(storage);
  if (known == current_.end()) return;
  const plan::ValueId value = known->second;
  current_.erase(known);
  if (ledger_.fetchable(value)) return;  // its contents are elsewhere
  if (flow_.is_leaf(value)) return take_snapshot(value);
  displace(value, /*reported=*/false);
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
  for (plan::ValueId input : flow_.inputs(op)) {
    const ValueState& s = values_[at(input)];
    // Of results the program's own storage, and not one that a replay made.
    const bool ours = s.leaf >= 0 ? leaves_[at(s.leaf)].snapshot : !ledger_.held(input);
    if (!ours && s.leaf >= 0 && s.storage && static_cast<Bytes>(s.storage.nbytes()) != s.nbytes) {
      throw Error(fmt::format(
          "replay: {} reads {}, whose storage had {} when it was recorded and has {} now; what is freed before "
          "backward cannot be read again: keep what depends on it in a snug::Region(Keep)",
          describe(op), name_of(input), format_bytes(s.nbytes), format_bytes(static_cast<Bytes>(s.storage.nbytes()))));
    }
    if (ours || !written_since(input)) continue;
    throw Error(fmt::format(
        "replay: {} reads {}, which was modified in place after it was recorded (version {} then, {} now): its "
        "gradient would be wrong; modify it after backward, or keep what depends on it in a snug::Region(Keep)",
        describe(op), name_of(input), s.version.seen(), s.version.now()));
  }
}

bool Tape::made(const at::Tensor& tensor) const {
  if (!is_plain(tensor)) return false;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const auto is_leaf = [&](const ValueState& s) { return s.leaf >= 0 && s.identity._unsafe_get_target() == storage; };
  return current_.find(storage) != current_.end() && std::ranges::none_of(values_, is_leaf);
}

std::optional<std::string> Tape::resized_leaf() const {
  for (plan::ValueId v = 0; v < flow_.values(); ++v) {
    const ValueState& s = values_[at(v)];
    if (s.leaf < 0 || leaves_[at(s.leaf)].snapshot || !s.storage) continue;
    if (static_cast<Bytes>(s.storage.nbytes()) != s.nbytes) return name_of(v);
  }
  return std::nullopt;
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
