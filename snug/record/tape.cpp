#include "snug/record/tape.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/patient_lock.h"
#include "snug/record/leaf_names.h"
#include "snug/record/profiler.h"
#include "snug/record/recording.h"

namespace snug::record {

Tape::Tape(Policy policy, Profiler* profiler)
    : policy_(std::move(policy)),
      profiler_(profiler),
      ledger_(flow_, [this](plan::ValueId v) { dropped(v); }),
      regions_(1, Region{plan::kRootSegment, false}),
      covered_{0},
      recompute_{0} {
  constexpr std::size_t kTypicalOps = 1024;
  calls_.reserve(kTypicalOps);
  values_.reserve(kTypicalOps);
  current_.reserve(kTypicalOps);
  if (const auto* follow = std::get_if<FollowPlan>(&policy_))
    planned_segments_.emplace(follow->steps.front().plan->segments);
}

Tape::~Tape() = default;

Tape::ValueState& Tape::state(plan::ValueId value) {
  if (at(value) >= values_.size()) values_.resize(at(value) + 1);
  return values_[at(value)];
}

// --- values --------------------------------------------------------------------------------------------------------

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

plan::ValueId Tape::value_of(const at::Tensor& tensor) {
  const auto found = current_.find(tensor.storage().unsafeGetStorageImpl());
  if (found == current_.end()) return new_leaf(tensor);
  const plan::ValueId value = found->second;
  const ValueState& s = values_[at(value)];
  if (s.leaf >= 0) {
    const Leaf& leaf = leaves_[at(s.leaf)];
    // Written since by something that is not recorded: other contents, so another value.
    if (leaf.versioned && leaf.version.current_version() != leaf.seen) return new_leaf(tensor);
    if (!ledger_.held(value) && !ledger_.offloaded(value)) hold(value, tensor.storage());
  }
  return value;
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
  if (ledger_.offloaded(value)) return;  // its contents are elsewhere
  ledger_.lose(value);
  values_[at(value)].storage = c10::Storage();
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

void Tape::note_contents(plan::ValueId value, const View& view) {
  const plan::OpId op = flow_.producer(value);
  if (op == plan::kNoOp) return;
  const auto outputs = flow_.outputs(op);
  const auto index = std::ranges::find(outputs, value, &plan::Output::value) - outputs.begin();
  const OutputSlot& slot = output_slot(call(op), static_cast<std::size_t>(index));
  if (slot.is_argument || call(op).traits->scratch_result != slot.position)
    verified_.try_emplace(value, Verified{view, {}});
}

void Tape::remember(plan::ValueId value, const c10::Storage& storage) {
  const auto found = verified_.find(value);
  if (found == verified_.end() || found->second.then) return;
  try {
    found->second.then.emplace(geometry_.tensor(found->second.view, storage), verify_);
  } catch (...) {  // no memory for a copy of what does not lie densely: it goes unverified
  }
}

void Tape::check_contents(plan::ValueId value) const {
  const auto found = verified_.find(value);
  if (found == verified_.end() || !found->second.then) return;
  const at::Tensor now = geometry_.tensor(found->second.view, storage(value));
  const auto difference = found->second.then->difference(now);
  if (!difference) return;
  const plan::OpId op = flow_.producer(value);
  throw Error(
      fmt::format("verify_replay: {} made other bits than in forward: of its result of {}, the first difference is in "
                  "{}; what does not repeat itself must be kept: snug::Region(snug::Selective{{.keep = {{\"{}\"}}}})",
                  describe(op), format_bytes(static_cast<Bytes>(now.nbytes())), *difference, call(op).traits->name));
}

plan::OpId Tape::op_of_sequence(std::uint64_t number) const {
  // Nodes take their number just before their operator runs.
  const auto found = std::ranges::find(sequence_numbers_, number + 1);
  return found == sequence_numbers_.end() ? plan::kNoOp : static_cast<plan::OpId>(found - sequence_numbers_.begin());
}

std::string Tape::describe(plan::OpId op) const {
  const std::string& module = module_of(op);
  return fmt::format("{} (operator {}{})", call(op).traits->name, op, module.empty() ? "" : " in " + module);
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

const KnownStep* Tape::known_step() const {
  const auto* follow = std::get_if<FollowPlan>(&policy_);
  return follow != nullptr ? &follow->steps.front() : nullptr;
}

double Tape::seconds(plan::OpId op) const {
  const KnownStep* known = known_step();
  if (known != nullptr && at(op) < known->graph->ops.size()) return known->graph->ops[at(op)].seconds;
  return at(op) < op_seconds_.size() ? op_seconds_[at(op)] : 1.0;
}

std::string Tape::name_of(plan::ValueId value) const {
  const std::string name = leaf_name(values_[at(value)].identity._unsafe_get_target(), nbytes(value));
  return flow_.is_leaf(value) ? name
                              : fmt::format("{}, a result of {}", name, call(flow_.producer(value)).traits->name);
}

bool Tape::enter_pass(int id) {
  if (pass_ == id) return false;
  pass_ = id;
  ledger_.begin_pass();
  return true;
}

void Tape::leave_pass() {
  const std::lock_guard lock(mutex_);
  ledger_.end_pass();
  // Who reads what is known when the recording is over.
  if (finished()) std::erase_if(offloaded_, [&](const auto& entry) { return !ledger_.needed(entry.first); });
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

// --- regions -------------------------------------------------------------------------------------------------------

void Tape::open_region(bool recompute, SelectivePolicy policy, Bytes min_offload) {
  const std::lock_guard lock(mutex_);
  bind_all();
  if (planned()) {  // segments are the plan's
    regions_.push_back({current_segment(), recompute, std::move(policy), min_offload});
    return;
  }
  const plan::SegmentId parent = current_segment();
  const plan::SegmentId segment = flow_.open_segment(parent);
  covered_.resize(at(segment) + 1, 0);
  recompute_.resize(at(segment) + 1, 0);
  recompute_[at(segment)] = recompute;
  covered_[at(segment)] = recompute || covered(parent);
  regions_.push_back({segment, recompute, std::move(policy), min_offload});
}

void Tape::close_region() {
  const std::lock_guard lock(mutex_);
  bind_all();
  regions_.pop_back();
}

/// Whether a value that is read here must be kept because the region that drops it, or the region that reads it, could
/// not get it back on its own.
bool Tape::escapes(plan::ValueId value) const {
  if (flow_.segments() == 1 || std::holds_alternative<FollowPlan>(policy_) || flow_.is_leaf(value)) return false;
  const plan::SegmentId born = flow_.segment(flow_.producer(value));
  const plan::SegmentId here = current_segment();
  if (born == here) return false;
  if (covered(flow_.common_segment(born, here))) return false;
  return covered(born) || covered(here);
}

bool Tape::keeps_when_saved(plan::ValueId value) const {
  if (flow_.is_leaf(value)) return true;
  if (std::holds_alternative<FollowPlan>(policy_)) return false;  // held at birth, or not at all
  if (must(value) == plan::Must::Recompute) return escapes(value);
  const plan::SegmentId born = flow_.segment(flow_.producer(value));
  return !recompute_[at(born)] || escapes(value);
}

// --- saved tensors -------------------------------------------------------------------------------------------------

bool Tape::save(const at::Tensor& tensor, SavedTensor& saved) {
  const std::lock_guard lock(mutex_);
  if (!is_plain(tensor)) {
    ++unplain_saved_;
    return false;
  }
  saved.view = geometry_.add(tensor);
  saved.storage = tensor.storage();
  saved.version = tensor.unsafeGetTensorImpl()->version_counter();
  saved.versioned = saved.version.enabled();
  if (saved.versioned) saved.seen_version = saved.version.current_version();
  waiting_.push_back(&saved);
  return true;
}

void Tape::bind(SavedTensor& saved) {
  const auto found = current_.find(saved.storage.unsafeGetStorageImpl());
  plan::ValueId value = plan::kNoValue;
  const auto written_since = [&] {
    const ValueState& s = values_[at(found->second)];
    if (s.leaf < 0) return false;
    const Leaf& leaf = leaves_[at(s.leaf)];
    return leaf.versioned && leaf.version.current_version() != leaf.seen;
  };
  if (found == current_.end() || written_since()) {
    // No recorded operator has seen these contents: a leaf. Its version is checked by the saved tensor itself.
    value = flow_.add_leaf();
    ValueState& s = state(value);
    s.identity = saved.storage.getWeakStorageImpl();
    s.nbytes = static_cast<Bytes>(saved.storage.nbytes());
    s.device = saved.storage.device();
    s.leaf = static_cast<std::int32_t>(leaves_.size());
    leaves_.push_back({saved.version, saved.seen_version, saved.versioned, false, {}});
    current_[saved.storage.unsafeGetStorageImpl()] = value;
    hold(value, saved.storage);
  } else {
    value = found->second;
  }
  ValueState& s = values_[at(value)];
  s.read = true;
  if (s.uninitialized) make_opaque(value, saved.version, saved.seen_version, saved.versioned, /*reported=*/true);
  saved.view.value = value;
  saved.bound = true;
  ledger_.pack(value);
  if (verify_ != VerifyReplay::Off) note_contents(value, saved.view);
  if (!ledger_.held(value) && !ledger_.offloaded(value)) {
    if (s.offloads || keeps_when_saved(value)) {
      keep(value, saved.storage, saved.version, saved.seen_version, saved.versioned);
    } else if (verify_ != VerifyReplay::Off) {
      remember(value, saved.storage);
    }
  }
  if (profiler_ != nullptr) profiler_->saved(value);
  saved.storage = c10::Storage();
}

SavedCounts Tape::saved_counts() const {
  const std::lock_guard lock(mutex_);
  SavedCounts counts;
  counts.layout = unplain_saved_;
  for (plan::ValueId v = 0; v < flow_.values(); ++v) {
    const int saved = ledger_.packs(v);
    (ledger_.offloaded(v) ? counts.dropped
     : flow_.is_leaf(v)   ? counts.leaves
     : ledger_.held(v)    ? counts.kept
                          : counts.dropped) += saved;
  }
  return counts;
}

void Tape::bind_all() {
  const std::lock_guard lock(mutex_);
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

void Tape::forget(SavedTensor& saved, bool consumed) {
  const PatientLock lock(mutex_);
  if (!saved.bound) {
    std::erase(waiting_, &saved);
    return;
  }
  if (profiler_ != nullptr) profiler_->released(saved.view.value);
  ledger_.release(saved.view.value, consumed);
  if (!offloaded_.empty() && finished() && !ledger_.needed(saved.view.value)) offloaded_.erase(saved.view.value);
  if (profiler_ != nullptr) profiler_->rebase();
}

/// The step is not the one that was followed: goes on with another known one that agrees up to and with operator `op`
/// (or ends before it), else with none.
void Tape::follow_another(plan::OpId op, std::string expected, std::string found) {
  auto& steps = std::get<FollowPlan>(policy_).steps;
  const bool over = op == flow_.ops() && signatures_.size() == at(op);
  const auto agrees = [&](const KnownStep& step) {
    const auto& ops = step.graph->ops;
    if (over ? ops.size() != signatures_.size() : ops.size() < signatures_.size()) return false;
    for (std::size_t i = 0; i < signatures_.size(); ++i) {
      if (ops[i].signature != signatures_[i]) return false;
    }
    return true;
  };
  const auto other = std::find_if(steps.begin() + 1, steps.end(), agrees);
  if (other == steps.end()) {
    divergence_ = Divergence{op, std::move(expected), std::move(found)};
    if (!over) policy_ = KeepSaved{};
    return;
  }
  std::rotate(steps.begin(), other, other + 1);
  planned_segments_.emplace(steps.front().plan->segments);
}

void Tape::finish() {
  const std::lock_guard lock(mutex_);
  bind_all();
  if (const KnownStep* known = known_step();
      known != nullptr && static_cast<std::size_t>(flow_.ops()) < known->graph->ops.size()) {
    follow_another(flow_.ops(), known->graph->ops[at(flow_.ops())].name, "the end of the step");
  }
  for (ValueState& s : values_) {
    if (s.versioned) s.seen = s.version.current_version();
  }
  if (profiler_ != nullptr) profiler_->before_settle(*this);
  ledger_.settle(/*keep_leaves=*/planned());
  std::erase_if(offloaded_, [&](const auto& entry) { return !ledger_.needed(entry.first); });
  if (profiler_ != nullptr) profiler_->rebase();
}

}  // namespace snug::record
