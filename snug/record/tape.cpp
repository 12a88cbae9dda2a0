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
  take_planned_segments();
}

Tape::~Tape() = default;

void Tape::decide() {
  const auto* later = std::get_if<DecideLater>(&policy_);
  if (later == nullptr) return;
  DecideLater::Decision decision = later->decide();
  const std::lock_guard lock(mutex_);
  profiler_ = decision.profiler;
  std::visit([this](auto& chosen) { policy_ = std::move(chosen); }, decision.policy);
  take_planned_segments();
}

void Tape::take_planned_segments() {
  if (const KnownStep* known = known_step()) planned_segments_.emplace(known->plan->segments);
}

void Tape::detach() noexcept {
  profiler_ = nullptr;
  if (std::holds_alternative<DecideLater>(policy_)) policy_ = KeepSaved{};
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
  if (finished()) forget_offloaded();
}

// --- regions -------------------------------------------------------------------------------------------------------

void Tape::open_region(bool recompute, SelectivePolicy policy, Bytes min_offload) {
  decide();
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
  saved.version = SeenVersion(tensor);
  waiting_.push_back(&saved);
  return true;
}

void Tape::bind(SavedTensor& saved) {
  const auto found = current_.find(saved.storage.unsafeGetStorageImpl());
  plan::ValueId value = plan::kNoValue;
  const plan::ValueId before = found != current_.end() ? found->second : plan::kNoValue;
  const bool written = before != plan::kNoValue && (written_since(before) || !accepts(before, saved.version));
  if (written) displace(before, /*reported=*/true);
  if (before == plan::kNoValue || written) {
    // No recorded operator has seen these contents: a leaf. Its version is checked by the saved tensor itself.
    value = flow_.add_leaf();
    ValueState& s = state(value);
    s.identity = saved.storage.getWeakStorageImpl();
    s.nbytes = static_cast<Bytes>(saved.storage.nbytes());
    s.device = saved.storage.device();
    s.leaf = static_cast<std::int32_t>(leaves_.size());
    s.version = saved.version;
    leaves_.emplace_back();
    current_[saved.storage.unsafeGetStorageImpl()] = value;
    hold(value, saved.storage);
    if (written) {
      inherit_versions(value, before);
      values_[at(value)].of_result = is_of_result(before);
    }
  } else {
    value = before;
  }
  ValueState& s = values_[at(value)];
  s.read = true;
  if (s.uninitialized) make_opaque(value, saved.version, /*reported=*/true);
  saved.view.value = value;
  saved.bound = true;
  ledger_.pack(value);
  if (verify_ != VerifyReplay::Off) note_contents(value, saved.view);
  if (!ledger_.held(value) && !ledger_.fetchable(value)) {
    if (s.moves || keeps_when_saved(value)) {
      keep(value, saved.storage);
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
    (ledger_.fetchable(v) ? counts.dropped
     : flow_.is_leaf(v)   ? counts.leaves
     : ledger_.held(v)    ? counts.kept
                          : counts.dropped) += saved;
  }
  return counts;
}

void Tape::bind_all() {
  const std::lock_guard lock(mutex_);
  settle_versions();
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
  if (profiler_ != nullptr) profiler_->released(saved.view.value);
  ledger_.release(saved.view.value, unpacked_in != kNoPass && unpacked_in == pass_);
  const plan::ValueId value = saved.view.value;
  if (finished() && ledger_.useless(value) && offloaded_.erase(value) > 0) ledger_.forget(value);
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
  take_planned_segments();
}

void Tape::finish() {
  decide();
  const std::lock_guard lock(mutex_);
  bind_all();
  if (const KnownStep* known = known_step();
      known != nullptr && static_cast<std::size_t>(flow_.ops()) < known->graph->ops.size()) {
    follow_another(flow_.ops(), known->graph->ops[at(flow_.ops())].name, "the end of the step");
  }
  notice_writes();
  for (plan::ValueId v = 0; v < flow_.values(); ++v) {
    if (!flow_.is_leaf(v)) values_[at(v)].version.look_again();
  }
  for (auto& [value, others] : other_versions_) {
    if (flow_.is_leaf(value)) continue;
    for (SeenVersion& v : others) v.look_again();
  }
  if (profiler_ != nullptr) profiler_->before_settle(*this);
  ledger_.settle(/*keep_leaves=*/planned());
  forget_offloaded();
  if (profiler_ != nullptr) profiler_->rebase();
}

}  // namespace snug::record
