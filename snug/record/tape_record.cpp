// What happens around each operator call: it is prepared, it runs, and it is committed to the tape.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "snug/base/clock.h"
#include "snug/base/patient_lock.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/swallowed_refusal.h"
#include "snug/record/hidden_writes.h"
#include "snug/record/recording.h"
#include "snug/record/tape.h"
#include "snug/record/unshard_range.h"

namespace snug::record {
namespace {

using Collective = OperatorTraits::Collective;

bool covers_its_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && tensor.nbytes() >= tensor.storage().nbytes();
}

/// Calls `call(tensor, slot)` with each tensor among the results, which are on the stack from `first` on.
template <class Call>
void for_each_result(const torch::jit::Stack& stack, std::size_t first, const Call& call) {
  for (std::size_t i = first; i < stack.size(); ++i) {
    const auto position = static_cast<std::int16_t>(i - first);
    if (stack[i].isTensor()) {
      call(stack[i].toTensor(), OutputSlot{false, position, -1});
    } else if (stack[i].isTensorList()) {
      std::int16_t element = 0;
      for (const at::Tensor& t : stack[i].toTensorList()) call(t, OutputSlot{false, position, element++});
    }
  }
}

using Raises = OperatorTraits::Raises;

/// Of what the schema says is written.
Tape::Version version_of_writes(const OperatorTraits& traits) {
  const bool rises = traits.raises == Raises::BeforeTheKernel || traits.raises == Raises::AfterTheKernel;
  return rises ? Tape::Version::Rises : Tape::Version::MayStay;
}

/// Whether a result is in a storage of its own, and not a view of an input.
bool is_new(const at::Tensor& result, const PendingLists& lists) {
  return result.defined() && is_plain(result) &&
         std::ranges::find(lists.input_storages, result.storage().unsafeGetStorageImpl()) == lists.input_storages.end();
}

}  // namespace

void Tape::record(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet keys,
                  torch::jit::Stack& stack) {
  // Weights that are gathered again are the same values as before.
  if (writes_without_version(traits) && !UnshardRange::here())
    for_each_written(traits, arguments_on(stack, traits), &tell_finished_tapes);
  if (runs_once(traits, arguments_on(stack, traits))) return run_once(op, traits, keys, stack);

  decide();
  lists_.clear();
  PendingCall pending{.traits = traits, .mark = calls_.mark(), .call = calls_.begin(op, traits, keys), .lists = lists_};
  try {
    prepare(pending, arguments_on(stack, traits));
    run(pending, op, keys, stack);
  } catch (...) {
    const PatientLock lock(mutex_);
    roll_back(pending);
    throw;
  }
  pending.hides_writes ? leave_out(pending) : commit(pending, stack);
}

/// It has run, and must not run again: what it has written and returned becomes a leaf when it is read.
void Tape::leave_out(PendingCall& pending) {
  const PatientLock lock(mutex_);
  const std::vector<WrittenTensor> written = pending.lists.written;
  roll_back(pending);
  for (const WrittenTensor& w : written) {
    written_elsewhere(w.tensor.storage().unsafeGetStorageImpl());
    note_written(w.tensor, version_of_writes(pending.traits));
  }
  observers_.tell_recording(&TapeObserver::op_not_recorded);
}

bool Tape::runs_once(const OperatorTraits& traits, const c10::IValue* arguments) const {
  return UnshardRange::here() || traits.collective != Collective::No || is_beyond_values(traits, arguments) ||
         (traits.only_writes && updates_unread_leaves(traits, arguments));
}

/// Runs an operator that is not replayed: a collective, one with tensors that no value can stand for, or one whose old
/// contents nothing depends on. What it writes and returns becomes a leaf when it is read. Gathered weights are the
/// same values as before.
void Tape::run_once(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet keys,
                    torch::jit::Stack& stack) {
  decide();
  std::vector<at::Tensor> written;
  {
    const PatientLock lock(mutex_);
    observers_.tell_recording(&TapeObserver::op_begins, *this);
    if (traits.raises == Raises::BeforeTheKernel) excuse(traits, arguments_on(stack, traits));
    for_each_written(traits, arguments_on(stack, traits), [&](const at::Tensor& tensor) {
      if (gathers(tensor)) return;
      written_elsewhere(tensor.storage().unsafeGetStorageImpl());
      written.push_back(tensor);
    });
  }
  observers_.tell_recording(&TapeObserver::kernel_begins);
  HiddenWrites::run_kernel(op, traits, keys, stack);
  memory::rethrow_swallowed_refusal();
  // A kernel that throws has written nothing.
  for (const at::Tensor& tensor : written) note_written(tensor, version_of_writes(traits));
  written.clear();  // tensors of the program
  if (traits.collective == Collective::FillsLater || traits.collective == Collective::Waits)
    note_filling(traits, stack);
  if (!observers_.any_sees_recording()) return;
  observers_.tell_recording(&TapeObserver::kernel_ends);
  const PatientLock lock(mutex_);
  observers_.tell_recording(&TapeObserver::op_not_recorded);
}

/// Whether the storage is one that weights are gathered into.
bool Tape::gathers(const at::Tensor& written) {
  if (!UnshardRange::here()) return false;
  const plan::ValueId value = values_.in(written.storage().unsafeGetStorageImpl());
  if (value != plan::kNoValue && !flow().is_leaf(value)) return false;
  unsharded_.gathered(written.storage(), UnshardRange::number());
  return true;
}

/// It is about to be written over, and cannot be made again where those are that made it.
void Tape::keep_what_is_made_of(plan::ValueId value) {
  for (plan::OpId op = flow().producer(value) + 1; op < flow().ops(); ++op) {
    if (std::ranges::find(flow().inputs(op), value) == flow().inputs(op).end()) continue;
    for (const plan::Output& out : flow().outputs(op)) {
      if (!flow().is_leaf(out.value)) must_be_kept(out.value);
    }
  }
}

/// What a functional collective returns is filled by another thread until somebody waits for it, and views of it may be
/// taken before.
void Tape::note_filling(const OperatorTraits& traits, const torch::jit::Stack& results) {
  const PatientLock lock(mutex_);
  for (const c10::IValue& result : results) {
    for_each_tensor(result, [&](const at::Tensor& tensor) {
      if (!is_plain(tensor)) return;
      if (traits.collective == Collective::Waits) {
        lookup_.filled(tensor.storage());
      } else {
        lookup_.being_filled(tensor.storage());
      }
    });
  }
}

// --- before it runs ------------------------------------------------------------------------------------------------

void Tape::prepare(PendingCall& pending, const c10::IValue* arguments) {
  const PatientLock lock(mutex_);
  observers_.tell_recording(&TapeObserver::op_begins, *this);
  versions_.settle();
  if (!waiting_.empty()) bind_before(pending.traits, arguments);
  if (pending.traits.raises == Raises::BeforeTheKernel) excuse(pending.traits, arguments);
  capture_arguments(pending, arguments);
  for (const WrittenTensor& w : pending.lists.written) {
    values_.gone(w.before);
    if (unsharded_.is_kept(w.before)) keep_what_is_made_of(w.before);
    // Its contents from before may be needed again.
    if (flow().is_leaf(w.before) && (!w.whole || values_.was_read(w.before))) values_.copy_before_write(w.before);
  }
  if (outer_ != nullptr) {
    for (const WrittenTensor& w : pending.lists.written)
      outer_->written_elsewhere(w.tensor.storage().unsafeGetStorageImpl());
  }
  pending.signature = calls_.sign(pending.traits, [&](plan::ValueId value) { return values_.was_there(value); });
  if (pending.traits.draws != OperatorTraits::Draws::Never) capture_random_state(pending, arguments);
  for (const Argument& a : calls_.arguments_since(pending.mark)) {
    for (std::int32_t k = 0; a.kind != Argument::Kind::Constant && k < a.count; ++k) {
      const plan::ValueId value = calls_.view(a.index + k).value;
      if (value != plan::kNoValue) pending.lists.input_storages.push_back(values_.address(value));
    }
  }
  streams_.used(pending.lists.input_storages);
}

void Tape::roll_back(PendingCall& pending) {
  calls_.roll_back(pending.mark);
  pending.lists.written.clear();  // it refers to tensors of the program
}

// --- while it runs -------------------------------------------------------------------------------------------------

void Tape::run(PendingCall& pending, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
               torch::jit::Stack& stack) {
  observers_.tell_recording(&TapeObserver::kernel_begins);
  const auto now = [&] { return timed_by_->own_seconds().value_or(monotonic_seconds()); };
  const double started = timed_by_ != nullptr ? now() : 0;
  {
    const memory::OperationScope operation(&pending.traits.name);
    pending.hides_writes = HiddenWrites::run_kernel(op, pending.traits, keys, stack);
    memory::rethrow_swallowed_refusal();
  }
  if (timed_by_ != nullptr) pending.seconds = now() - started;
  calls_.note_drawn(pending.call);  // no other thread reads these before the call is committed
  observers_.tell_recording(&TapeObserver::kernel_ends);
}

// --- when it has run -----------------------------------------------------------------------------------------------

void Tape::commit(PendingCall& pending, const torch::jit::Stack& stack) {
  const PatientLock lock(mutex_);
  PendingLists& lists = pending.lists;
  const std::size_t first = stack.size() - pending.call.op.schema().returns().size();
  // An operator that only looks at its inputs in another way is not recorded: views are geometry.
  bool makes = !lists.written.empty();
  const auto is_made = [&](const at::Tensor& t) { return !pending.traits.rebinds && is_new(t, lists); };
  for_each_result(stack, first, [&](const at::Tensor& t, OutputSlot) { makes = makes || is_made(t); });
  if (!makes) {
    roll_back(pending);
    observers_.tell_recording(&TapeObserver::op_not_recorded);
    return;
  }
  calls_.forget_unmoved(pending.call);
  const plan::OpId op = calls_.add(pending.call, pending.signature);
  if (timed_by_ != nullptr) calls_.note_seconds(pending.seconds);
  if (observers_.see_results()) calls_.note_sequence_number();
  plan::SegmentId segment = regions_.segment();
  if (follower_.planned()) {
    segment = follower_.enter(values_.flow(), calls_);
    regions_.add_planned_segments(flow().segments());
  }
  ask_region(pending);  // may allocate, and evict: values and ledger are whole
  values_.flow().add_op(lists.inputs, segment, pending.traits.runs);
  values_.flow().reads_group(group_of(lists.inputs));
  for (const WrittenTensor& w : lists.written) add_written(pending, w);
  for_each_result(stack, first, [&](const at::Tensor& t, OutputSlot slot) {
    if (is_made(t)) add_result(pending, t, slot);
  });
  lists.written.clear();  // it refers to tensors of the program
  observers_.tell_recording(&TapeObserver::op_recorded, *this, op);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (observers_.see_results()) tell_results(op);
}

/// Of weights that were gathered before the step began a plan's step knows more.
plan::GroupId Tape::group_of(std::span<const plan::ValueId> inputs) const {
  const plan::GroupId group = unsharded_.group_of(inputs);
  const KnownStep* known = follower_.known_step();
  const plan::OpId op = calls_.size() - 1;
  if (group != plan::kAlwaysThere || known == nullptr || op >= known->graph->flow.ops()) return group;
  return known->graph->flow.group(op);
}

void Tape::ask_region(PendingCall& pending) {
  try {
    pending.verdict = regions_.ask(pending.traits);
  } catch (...) {
    failure_ = std::current_exception();  // the operator has run: it is recorded first
  }
  if (planned()) pending.verdict.preferred = plan::kRecompute;  // it says nothing of what is only preferred
}

void Tape::add_written(PendingCall& pending, const WrittenTensor& written) {
  const OperatorTraits& traits = pending.traits;
  const auto by_schema = [&](const WrittenTensor& w) { return traits.writes[plan::at(w.slot.position)] != 0; };
  const plan::ValueId before = written.before;
  c10::StorageImpl* storage = written.tensor.storage().unsafeGetStorageImpl();
  if (traits.rebinds) {
    versions_.set(before, SeenVersion());  // the counter goes on with the tensor
    if (const plan::ValueId there = values_.in(storage); there != plan::kNoValue) {
      versions_.add(there, written.version);
      versions_.expect(there, written.version);  // which is no write to it
    }
    return;
  }
  if (flow().is_leaf(before)) let_go_originals(before, pending.let_go);
  note_written(written.tensor, by_schema(written) ? version_of_writes(traits) : Version::MayStay);
  if (!values_.copied(before)) values_.take(before);
  if (observers_.see_results()) pending.lists.results.push_back(written.tensor);
  const plan::ValueId value = add_output(pending, written.tensor, before, written.slot);
  versions_.inherit(value, before);
  if (traits.raises == Raises::AfterTheKernel || traits.raises == Raises::Perhaps) {
    for (const WrittenTensor& w : pending.lists.written) {
      if (by_schema(w) && w.tensor.storage().unsafeGetStorageImpl() == storage) versions_.expect(value, w.version);
    }
  }
  place(pending, value, written.tensor.storage());
}

void Tape::add_result(PendingCall& pending, const at::Tensor& tensor, OutputSlot slot) {
  if (observers_.see_results() && slot.position != pending.traits.scratch_result)
    pending.lists.results.push_back(tensor);
  // Two results over one storage are one value.
  const plan::ValueId known = values_.in(tensor.storage().unsafeGetStorageImpl());
  if (known != plan::kNoValue && flow().producer(known) == flow().ops() - 1) return;
  place(pending, add_output(pending, tensor, plan::kNoValue, slot), tensor.storage());
}

plan::ValueId Tape::add_output(const PendingCall& pending, const at::Tensor& tensor, plan::ValueId overwrites,
                               OutputSlot slot) {
  const plan::ValueId value = values_.add_output(tensor.storage(), overwrites);
  streams_.made_on(tensor.device());
  slot.dtype = tensor.scalar_type();
  slot.layout = layout_of(tensor);
  calls_.add_output(slot);
  if (pending.traits.uninitialized) {
    values_.set_unfilled(value);
  } else if (covers_its_storage(tensor) || (overwrites != plan::kNoValue && values_.all_written(overwrites))) {
    values_.set_all_written(value);
  }
  values_.set_must(value, must_of(pending, value));
  if (unsharded_.is_kept(overwrites)) {
    must_be_kept(value);  // in the place of one that could not be made again here
  } else if (unsharded_.any() && values_.must(value) != plan::Must::Keep) {
    unsharded_.add_result(value, pending.lists.inputs);
  }

  versions_.set(value, SeenVersion(tensor));
  return value;
}

/// What a region demands, or else what was known when the step was planned, as where processes keep what they make
/// together.
plan::Must Tape::must_of(const PendingCall& pending, plan::ValueId value) const {
  const KnownStep* known = follower_.known_step();
  const bool is_known = known != nullptr && plan::at(value) < known->graph->values.size();
  const bool is_asked = is_known && pending.verdict.must == plan::Must::Nothing;
  return is_asked ? known->graph->values[plan::at(value)].must : pending.verdict.must;
}

/// Where the plan or the region will have a value that has just been made.
void Tape::place(const PendingCall& pending, plan::ValueId value, const c10::Storage& storage) {
  const RegionVerdict& verdict = pending.verdict;
  const plan::Action action = plan::decide(values_.must(value), follower_.action(value, verdict.preferred));
  if (action == plan::kKeep) return values_.hold(value, storage);
  if (action == plan::kRecompute) return;
  // Once it is saved.
  if (follower_.known_step() != nullptr || regions_.moves(values_.nbytes(value))) values_.let_go_away(value, action);
}

void Tape::tell_results(plan::OpId op) {
  const std::vector<at::Tensor> results = std::exchange(lists_.results, {});
  const TapeMutex::Lent lent(mutex_);
  for (const at::Tensor& result : results) observers_.tell(&TapeObserver::made, *this, op, result, Run::First);
}

}  // namespace snug::record
