// The recording half of the tape: what happens around each operator call.
#include <ATen/SequenceNumber.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <span>

#include "snug/base/clock.h"
#include "snug/base/hash.h"
#include "snug/base/module_scope.h"
#include "snug/memory/out_of_budget.h"
#include "snug/record/profiler.h"
#include "snug/record/tape.h"

namespace snug::record {
namespace {

/// Whether a write through `tensor` replaces all of its storage.
bool covers_storage(const at::Tensor& tensor) {
  return tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() &&
         static_cast<std::size_t>(tensor.numel()) * tensor.itemsize() == tensor.storage().nbytes();
}

/// Where an operator draws its random numbers: on the device that it is asked for, as in rand_like(x, device=...), else
/// on that of its first tensor.
c10::Device device_of(const c10::IValue* arguments, std::size_t count) {
  std::optional<c10::Device> of_tensor;
  for (std::size_t i = 0; i < count; ++i) {
    if (arguments[i].isDevice()) return arguments[i].toDevice();
    if (!of_tensor && arguments[i].isTensor() && arguments[i].toTensor().defined())
      of_tensor = arguments[i].toTensor().device();
  }
  return of_tensor.value_or(c10::Device(c10::kCPU));
}

}  // namespace

/// Runs once, and in no replay: the other processes would not be there. What it writes is another value from here on,
/// perhaps only when somebody has waited for it; that and its results are leaves when they are read.
void Tape::run_collective(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const OperatorTraits& traits = traits_of(op);
  decide();
  {
    const std::lock_guard lock(mutex_);
    if (profiler_ != nullptr) profiler_->op_begins(*this);
    // As the names of LibTorch's operators say, it writes its first argument, if any.
    const std::string_view name = std::string_view(traits.name).substr(0, traits.name.find('.'));
    if (name.ends_with('_')) {
      for_each_stored(stack[stack.size() - traits.arguments.size()],
                      [&](const at::Tensor& written) { written_elsewhere(written.storage().unsafeGetStorageImpl()); });
    }
  }
  if (profiler_ != nullptr) profiler_->kernel_begins();
  op.redispatchBoxed(keys, &stack);
  if (profiler_ == nullptr) return;
  profiler_->kernel_ends();
  const std::lock_guard lock(mutex_);
  profiler_->op_not_recorded();
}

void Tape::record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const OperatorTraits& traits = traits_of(op);
  if (traits.collective) return run_collective(op, keys, stack);
  if (traits.annotation) return op.redispatchBoxed(keys, &stack);  // an optimizer's zero_grad() has one
  decide();
  const std::size_t count = traits.arguments.size();
  const std::size_t first = stack.size() - count;
  const std::size_t arguments_mark = arguments_.size(), views_mark = views_.size(), constants_mark = constants_.size();
  const std::size_t geometry_mark = geometry_.size(), random_mark = random_states_.size();
  const auto rollback = [&] {
    written_.clear();
    arguments_.resize(arguments_mark);
    views_.resize(views_mark);
    constants_.resize(constants_mark);
    geometry_.truncate(geometry_mark);
    random_states_.erase(random_states_.begin() + static_cast<std::ptrdiff_t>(random_mark), random_states_.end());
  };
  Call call{op,
            &traits,
            static_cast<std::int32_t>(arguments_mark),
            static_cast<std::int32_t>(slots_.size()),
            -1,
            c10::GradMode::is_enabled()};
  std::uint64_t signature = 0;
  {
    const std::lock_guard lock(mutex_);
    if (profiler_ != nullptr) profiler_->op_begins(*this);
    settle_versions();
    if (!waiting_.empty()) bind_before(stack, traits);
    inputs_.clear();
    written_.clear();
    if (traits.raises == OperatorTraits::Raises::BeforeTheKernel) excuse(traits, stack.data() + first);
    capture_arguments(traits, stack.data() + first);
    for (Written& written : written_) before_write(written);
    if (outer_ != nullptr) {
      for (const Written& w : written_) outer_->written_elsewhere(w.tensor.storage().unsafeGetStorageImpl());
    }
    signature = sign(traits);
    if (traits.seeded) {
      at::Generator generator;
      for (std::size_t i = 0; i < count; ++i) {
        if (stack[first + i].isGenerator()) generator = stack[first + i].toGenerator();
      }
      const c10::Device device = device_of(stack.data() + first, count);
      if (!generator.defined() && !device.is_meta()) generator = default_generator(device);
      if (generator.defined()) {
        call.random = static_cast<std::int32_t>(random_states_.size());
        random_states_.push_back(save_random_state(std::move(generator)));
      }
    }
    input_storages_.clear();
    for (std::size_t i = arguments_mark; i < arguments_.size(); ++i) {
      const Argument& a = arguments_[i];
      for (std::int32_t k = 0; a.kind != Argument::Kind::Constant && k < a.count; ++k) {
        const plan::ValueId v = views_[at(a.index + k)].value;
        if (v != plan::kNoValue) input_storages_.push_back(values_[at(v)].identity._unsafe_get_target());
      }
    }
  }
  if (profiler_ != nullptr) profiler_->kernel_begins();
  const double started = timed_ ? monotonic_seconds() : 0;
  try {
    const memory::OperationScope operation(&traits.name);
    op.redispatchBoxed(keys, &stack);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    rollback();
    throw;
  }
  const double seconds = timed_ ? monotonic_seconds() - started : 0;
  if (profiler_ != nullptr) profiler_->kernel_ends();

  const std::lock_guard lock(mutex_);
  const std::size_t results = stack.size() - op.schema().returns().size();
  const auto is_new = [&](const at::Tensor& t) {
    return t.defined() && is_plain(t) &&
           std::ranges::find(input_storages_, t.storage().unsafeGetStorageImpl()) == input_storages_.end();
  };
  // An operator that only looks at its inputs in another way is not recorded: views are geometry.
  bool any = !written_.empty();
  for (std::size_t i = results; i < stack.size() && !any; ++i) {
    if (stack[i].isTensor()) {
      any = is_new(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      const auto list = stack[i].toTensorList();
      any = std::ranges::any_of(list, [&](const auto& t) { return is_new(t); });
    }
  }
  if (!any) {
    rollback();
    if (profiler_ != nullptr) profiler_->op_not_recorded();
    return;
  }
  plan::SegmentId segment = current_segment();
  const plan::OpId id = flow_.ops();
  signatures_.push_back(signature);
  if (planned_segments_) {
    compare_with_plan(id, call);
    segment = planned_segments_->enter(flow_, id);
    if (at(flow_.segments()) > covered_.size()) {
      covered_.resize(at(flow_.segments()), 0);
      recompute_.resize(at(flow_.segments()), 0);
    }
  }
  ask_policy(traits);  // may allocate, and evict: the tape is whole
  flow_.add_op(inputs_, segment);
  if (timed_) {
    op_seconds_.resize(at(id), 1.0F);
    op_seconds_.push_back(static_cast<float>(seconds));
  }
  calls_.push_back(std::move(call));
  note_module();
  if (watch_) {
    sequence_numbers_.resize(at(id), 0);
    sequence_numbers_.push_back(at::sequence_number::peek());
  }
  for (const Written& w : written_) {
    if (traits.rebinds) {
      current_.erase(w.tensor.storage().unsafeGetStorageImpl());
      values_[at(w.before)].version = SeenVersion();  // the counter goes on with the tensor
      continue;
    }
    ValueState& before = values_[at(w.before)];
    // Not of results: kernels write theirs in parts that have versions of their own (unsafe_chunk).
    before.written_over = before.leaf >= 0 && !is_of_result(w.before) && traits.writes[at(w.position)] != 0;
    if (before.leaf < 0 || !leaves_[at(before.leaf)].snapshot) {
      before.storage = c10::Storage();
      ledger_.lose(w.before);
    }
    add_output(w.tensor, w.before, {true, w.position, w.element}, traits.uninitialized);
  }
  for (std::size_t i = results; i < stack.size(); ++i) {
    const auto position = static_cast<std::int16_t>(i - results);
    if (stack[i].isTensor()) {
      const at::Tensor& t = stack[i].toTensor();
      if (is_new(t)) add_output(t, plan::kNoValue, {false, position, -1}, traits.uninitialized);
    } else if (stack[i].isTensorList()) {
      std::int16_t element = 0;
      for (const at::Tensor& t : stack[i].toTensorList()) {
        if (is_new(t)) add_output(t, plan::kNoValue, {false, position, element}, traits.uninitialized);
        ++element;
      }
    }
  }
  written_.clear();  // it refers to tensors of the program
  if (profiler_ != nullptr) profiler_->op_recorded(*this, id);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (watch_) watch_outputs(id);
}

void Tape::capture_arguments(const OperatorTraits& traits, const c10::IValue* arguments) {
  using Kind = OperatorTraits::Argument;
  const auto constant = [&](const c10::IValue& value) {
    arguments_.push_back({Argument::Kind::Constant, static_cast<std::int32_t>(constants_.size()), 1});
    constants_.push_back(value);
  };
  const auto list_of = [&](const auto& list, Argument::Kind kind, std::size_t i, const auto& tensor_of) {
    const auto begin = static_cast<std::int32_t>(views_.size());
    std::int16_t element = 0;
    for (const auto& item : list) {
      capture_tensor(tensor_of(item), traits.writes[i] != 0, traits.overwrites, static_cast<std::int16_t>(i),
                     element++);
    }
    arguments_.push_back({kind, begin, static_cast<std::int32_t>(views_.size()) - begin});
  };
  for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    switch (traits.arguments[i]) {
      case Kind::Tensor:
        if (value.isTensor() && value.toTensor().defined() && is_plain(value.toTensor())) {
          const std::int32_t index = capture_tensor(value.toTensor(), writes(traits, arguments, i), traits.overwrites,
                                                    static_cast<std::int16_t>(i), -1);
          arguments_.push_back({Argument::Kind::Tensor, index, 1});
        } else {
          constant(value);
        }
        break;
      case Kind::TensorList: {
        const bool plain = value.isTensorList() && std::ranges::all_of(value.toTensorList(), [](const at::Tensor& t) {
                             return !t.defined() || is_plain(t);
                           });
        if (plain) {
          list_of(value.toTensorList(), Argument::Kind::TensorList, i, [](const at::Tensor& t) { return t; });
        } else {
          constant(value);
        }
        break;
      }
      case Kind::OptionalTensorList:
        if (value.isList()) {
          list_of(value.toListRef(), Argument::Kind::OptionalTensorList, i,
                  [](const c10::IValue& item) { return item.isTensor() ? item.toTensor() : at::Tensor(); });
        } else {
          constant(value);
        }
        break;
      case Kind::Generator:
      case Kind::Other:
        constant(value);
        break;
    }
  }
}

std::int32_t Tape::capture_tensor(const at::Tensor& tensor, bool written, bool overwrites, std::int16_t position,
                                  std::int16_t element) {
  const auto index = static_cast<std::int32_t>(views_.size());
  if (!tensor.defined()) {
    views_.emplace_back();
    return index;
  }
  if (profiler_ != nullptr) profiler_->reads(tensor);
  plan::ValueId value = plan::kNoValue;
  if (written && overwrites && covers_storage(tensor)) {
    value = value_of(tensor);  // replaced whole: not read
    written_.push_back({true, position, element, tensor, value, true, SeenVersion(tensor)});
  } else {
    value = read(tensor, written);
    inputs_.push_back(value);
    if (written) written_.push_back({true, position, element, tensor, value, false, SeenVersion(tensor)});
  }
  views_.push_back(view_of(tensor, value));
  return index;
}

/// A leaf that is about to be written keeps its contents in a copy when anything may need them again.
void Tape::before_write(Written& written) {
  const ValueState& s = values_[at(written.before)];
  if (s.leaf >= 0 && (!written.whole || s.read)) take_snapshot(written.before);
}

void Tape::take_snapshot(plan::ValueId value) {
  ValueState& s = values_[at(value)];
  Leaf& leaf = leaves_[at(s.leaf)];
  if (leaf.snapshot || !s.storage) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  View bytes;
  bytes.keys = c10::DispatchKeySet(c10::computeDispatchKey(c10::kByte, c10::kStrided, s.device));
  at::Tensor whole = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(s.storage), bytes.keys,
                                                              c10::scalarTypeToTypeMeta(c10::kByte));
  whole.unsafeGetTensorImpl()->set_sizes_contiguous({s.nbytes});
  const c10::Storage copy = [&] {  // may find no memory: then nothing has happened
    const TapeMutex::Lent lent(mutex_);
    return whole.clone().storage();
  }();
  leaf.original = std::exchange(s.storage, copy);
  leaf.snapshot = true;
}

void Tape::add_output(const at::Tensor& tensor, plan::ValueId overwrites, OutputSlot slot, bool uninitialized) {
  const bool scratch = !slot.is_argument && slot.position == calls_.back().traits->scratch_result;
  if (watch_ && !scratch) watched_.push_back(tensor);
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  // Two results over one storage are one value.
  if (const auto known = current_.find(impl); known != current_.end() && overwrites == plan::kNoValue) {
    if (flow_.producer(known->second) == flow_.ops() - 1) return;
  }
  const plan::ValueId value = flow_.add_output(overwrites);
  slots_.push_back(slot);
  ValueState& s = state(value);
  s.identity = tensor.storage().getWeakStorageImpl();
  s.nbytes = static_cast<Bytes>(tensor.storage().nbytes());
  s.device = tensor.storage().device();
  s.uninitialized = uninitialized;
  current_[impl] = value;
  s.must = must_;
  s.version = SeenVersion(tensor);
  if (slot.is_argument) {
    inherit_versions(value, overwrites);
    expect_raises(value, impl);
  }
  const KnownStep* known = known_step();
  switch (plan::decide(must_, known != nullptr ? known->plan->action(value) : preferred_).home) {
    case plan::Home::Device:
      hold(value, tensor.storage());
      break;
    case plan::Home::Host:  // once it is saved
      s.moves = known != nullptr || s.nbytes >= regions_.back().min_offload;
      break;
    case plan::Home::Nowhere:
      break;
  }
}

/// How often the versions of what was just written may rise after the kernel, on the way out of LibTorch's dispatcher.
void Tape::expect_raises(plan::ValueId value, const c10::StorageImpl* storage) {
  const OperatorTraits& traits = *calls_.back().traits;
  if (traits.raises != OperatorTraits::Raises::AfterTheKernel) return;
  const std::size_t first = unsettled_.size();
  for (const Written& w : written_) {
    if (!traits.writes[static_cast<std::size_t>(w.position)] || w.tensor.storage().unsafeGetStorageImpl() != storage)
      continue;
    expect_raise(unsettled_, first, value, w.version);
  }
  for (std::size_t i = first; i < unsettled_.size(); ++i) {
    ExpectedRaise& e = unsettled_[i];
    const std::uint32_t inside = e.counter.now() - e.counter.seen();  // by operators that the kernel called
    e.raises -= std::min(e.raises, inside);
  }
}

void Tape::bind_before(const torch::jit::Stack& stack, const OperatorTraits& traits) {
  // A saved tensor that this operator is about to write waits until it has: it was packed for this operator.
  std::vector<c10::StorageImpl*> written;
  for_each_written(traits, stack, [&](const at::Tensor& t) { written.push_back(t.storage().unsafeGetStorageImpl()); });
  std::erase_if(waiting_, [&](SavedTensor* saved) {
    if (std::ranges::find(written, saved->storage.unsafeGetStorageImpl()) != written.end()) return false;
    bind(*saved);
    return true;
  });
}

void Tape::watch_outputs(plan::OpId op) {
  const std::vector<at::Tensor> outputs = std::exchange(watched_, {});
  const TapeMutex::Lent lent(mutex_);
  for (const at::Tensor& output : outputs) watch_(op, output, /*again=*/false);
}

void Tape::note_module() {
  const std::string& now = current_module();
  if (module_names_[at(module_)] != now) {
    const auto known = std::ranges::find(module_names_, now);
    module_ = static_cast<std::int32_t>(known - module_names_.begin());
    if (known == module_names_.end()) module_names_.push_back(now);
  }
  modules_.push_back(module_);
}

/// What the innermost region says of the operator's results.
void Tape::ask_policy(const OperatorTraits& traits) {
  must_ = plan::Must::Nothing;
  preferred_ = plan::kRecompute;
  Region& region = regions_.back();
  if (!region.policy) return;
  Choice choice = Choice::PreferRecompute;
  try {
    choice = region.policy({traits.name, current_module(), region.invocations[&traits]++});
  } catch (...) {
    failure_ = std::current_exception();  // the operator has run: it is recorded first
  }
  switch (choice) {
    case Choice::MustKeep:
      must_ = plan::Must::Keep;
      break;
    case Choice::MustRecompute:
      must_ = plan::Must::Recompute;
      break;
    case Choice::PreferKeep:
      if (!planned()) preferred_ = plan::kKeep;
      break;
    case Choice::Offload:
      if (!planned()) preferred_ = plan::kMove;
      break;
    case Choice::PreferRecompute:
      break;
  }
}

std::uint64_t Tape::sign(const OperatorTraits& traits) {
  signed_words_.assign(1, static_cast<std::int64_t>(traits.hash));
  const std::size_t begin = arguments_.size() - traits.arguments.size();
  for (std::size_t i = begin; i < arguments_.size(); ++i) {
    const Argument& a = arguments_[i];
    if (a.kind == Argument::Kind::Constant) continue;
    const bool written = traits.may_write(i - begin);
    for (std::int32_t k = 0; k < a.count; ++k) {
      const View& view = views_[at(a.index + k)];
      // A batch may be cut out of a larger tensor, elsewhere in each step.
      const bool placed = written || view.value == plan::kNoValue || !flow_.is_leaf(view.value);
      const auto sizes = geometry_.sizes(view);
      signed_words_.insert(signed_words_.end(), {view.value, static_cast<std::int64_t>(view.dtype),
                                                 placed ? view.offset : -1, static_cast<std::int64_t>(sizes.size())});
      signed_words_.insert(signed_words_.end(), sizes.begin(), sizes.end());
    }
  }
  return hash_64(std::as_bytes(std::span(signed_words_)));
}

std::string Tape::inputs_of(const Call& call) const {
  constexpr std::size_t kLongest = 200;  // lists have hundreds
  std::string text;
  for (std::size_t i = 0; i < call.traits->arguments.size(); ++i) {
    const Argument& a = argument(call, i);
    if (a.kind == Argument::Kind::Constant) continue;
    for (std::int32_t k = 0; k < a.count; ++k) {
      const View& v = views_[at(a.index + k)];
      if (v.value == plan::kNoValue) continue;
      if (!text.empty()) text += ", ";
      if (text.size() > kLongest) return text + "...";
      std::string type = c10::toString(v.dtype);
      std::ranges::transform(type, type.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
      fmt::format_to(std::back_inserter(text), "{}[{}]", type, fmt::join(geometry_.sizes(v), ", "));
    }
  }
  return text;
}

void Tape::compare_with_plan(plan::OpId op, const Call& call) {
  const KnownStep* known = known_step();
  if (known == nullptr) return;
  const auto& planned = known->graph->ops;
  if (at(op) < planned.size() && planned[at(op)].signature == signatures_[at(op)]) return;
  const std::string found = fmt::format("{}({})", call.traits->name, inputs_of(call));
  if (at(op) >= planned.size()) return follow_another(op, "the end of the step", found);
  const std::string expected = fmt::format("{}({})", planned[at(op)].name, planned[at(op)].inputs);
  follow_another(op, expected, expected == found ? "the same with other values" : found);
}

}  // namespace snug::record
