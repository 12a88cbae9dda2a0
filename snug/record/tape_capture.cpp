// What a call is about to read and write, noted before it runs: then some of it is gone.
#include <algorithm>
#include <optional>
#include <utility>

#include "snug/base/patient_lock.h"
#include "snug/memory/owned_contents.h"
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

/// The operator raised the versions of what it is going to write before the tape saw the call.
void Tape::excuse(const OperatorTraits& traits, const c10::IValue* arguments) {
  std::vector<CountedRaise> raised;
  for_each_written(traits, arguments, [&](const at::Tensor& tensor) {
    if (!is_plain(tensor)) return;
    const plan::ValueId value = values_.in(tensor.storage().unsafeGetStorageImpl());
    if (value != plan::kNoValue) count_raise(raised, value, SeenVersion(tensor));
  });
  versions_.excuse(raised);
}

/// Whether the operator updates in place what no recorded operator has read, as an average of weights is updated in the
/// forward pass, or the weights by an optimizer at the beginning of a step. Nothing depends on the old contents:
/// without a copy of them the new ones are leaves.
bool Tape::updates_unread_leaves(const OperatorTraits& traits, const c10::IValue* arguments) const {
  if (traits.rebinds) return false;
  const PatientLock lock(mutex_);
  bool updates = false, all_unread = true;
  for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
    if (traits.writes[i] == 0) continue;
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      // Of what is streamed the plan has to know each use.
      if (!is_plain(tensor) || memory::has_owner(tensor)) {
        all_unread = false;
        return;
      }
      const plan::ValueId value = values_.in(tensor.storage().unsafeGetStorageImpl());
      const auto is_saved =
          [&](const SavedTensor* saved) {  // and waits for the operator that saved it, perhaps this one
            return saved->storage.unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl();
          };
      const bool is_unread = (value == plan::kNoValue || (flow().is_leaf(value) && !values_.was_read(value))) &&
                             std::ranges::none_of(waiting_, is_saved);
      all_unread = all_unread && is_unread;
      updates = updates || traits.overwrites[i] == 0 || !covers_storage(tensor);
    });
  }
  return updates && all_unread;
}

void Tape::capture_arguments(PendingCall& pending, const c10::IValue* arguments) {
  using Kind = OperatorTraits::Argument;
  const OperatorTraits& traits = pending.traits;
  const auto use = [&](std::size_t i, bool written) {
    return !written ? Use::Read : traits.overwrites[i] != 0 ? Use::Overwrite : Use::Write;
  };
  const auto capture_list = [&](const auto& list, Argument::Kind kind, std::size_t i, const auto& tensor_of) {
    const std::int32_t first = calls_.next_view();
    OutputSlot slot{true, static_cast<std::int16_t>(i), 0};
    for (const auto& item : list) {
      capture_tensor(pending, tensor_of(item), use(i, traits.writes[i] != 0), slot);
      ++slot.element;
    }
    calls_.add_tensors(kind, first);
  };
  for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    const Kind kind = traits.arguments[i];
    if (kind == Kind::Tensor && value.isTensor() && value.toTensor().defined() && is_plain(value.toTensor())) {
      const std::int32_t first = calls_.next_view();
      capture_tensor(pending, value.toTensor(), use(i, writes(traits, arguments, i)),
                     {true, static_cast<std::int16_t>(i), -1});
      calls_.add_tensors(Argument::Kind::Tensor, first);
    } else if (kind == Kind::TensorList && value.isTensorList() &&
               std::ranges::all_of(value.toTensorList(),
                                   [](const at::Tensor& t) { return !t.defined() || is_plain(t); })) {
      capture_list(value.toTensorList(), Argument::Kind::TensorList, i, [](const at::Tensor& t) { return t; });
    } else if (kind == Kind::OptionalTensorList && value.isList()) {
      capture_list(value.toListRef(), Argument::Kind::OptionalTensorList, i,
                   [](const c10::IValue& item) { return item.isTensor() ? item.toTensor() : at::Tensor(); });
    } else {
      calls_.add_constant(value);
    }
  }
}

void Tape::capture_tensor(PendingCall& pending, const at::Tensor& tensor, Use use, OutputSlot slot) {
  if (!tensor.defined()) return calls_.add_undefined_view();
  observers_.tell_recording(&TapeObserver::reads, tensor);
  PendingLists& lists = pending.lists;
  plan::ValueId value = plan::kNoValue;
  if (use == Use::Overwrite && covers_storage(tensor)) {
    const VersionNow version(tensor);
    value = lookup_.value_of(tensor.storage(), version);  // replaced whole: not read
    lists.written.push_back({slot, tensor, value, /*whole=*/true, SeenVersion(version)});
  } else {
    value = read(tensor, use);
    if (pending.traits.reads != OperatorTraits::Reads::Nothing) values_.set_read(value);
    lists.inputs.push_back(value);
    if (use != Use::Read) lists.written.push_back({slot, tensor, value, /*whole=*/false, SeenVersion(tensor)});
  }
  calls_.add_view(tensor, value);
}

plan::ValueId Tape::read(const at::Tensor& tensor, Use use) {
  const VersionNow version(tensor);
  const plan::ValueId value = lookup_.value_of(tensor.storage(), version);
  if (values_.unfilled(value)) {
    // An operator that writes a part of it is not what opaque() is for: it fills the memory, and is recorded.
    if (use == Use::Read) lookup_.report(value, Opaque::Case::Filled);
    lookup_.make_leaf(value, version);
    values_.hold(value, tensor.storage());
  } else if (const bool leaves = leaves_weights(value); !ledger().held(value) && !ledger().fetchable(value)) {
    if (leaves || escapes(value)) keep(value, tensor.storage());
  }
  if (unsharded_.any() && flow().is_leaf(value)) unsharded_.add_weight(value, tensor.storage());
  // The memory may be anybody's, as a batch's is NumPy's, and of a parameter `.data` writes without a version.
  if (flow().is_leaf(value)) lookup_.watch(value, tensor.storage());
  return value;
}

/// Whether it is read where the weights that it is made of are not there: then it must be kept.
bool Tape::leaves_weights(plan::ValueId value) {
  if (!unsharded_.any() || unsharded_.can_be_made_here(value)) return false;
  must_be_kept(value);
  return true;
}

/// Whatever plans say.
void Tape::must_be_kept(plan::ValueId value) {
  values_.set_must(value, plan::Must::Keep);
  unsharded_.kept(value);
}

/// The states of the generators that the operator draws from, or, where its schema does not say, may draw from: those
/// among its arguments, or else the default one of its device; an operator that is not LibTorch's may also use the
/// CPU's. See CallLog::note_drawn for those that it has not used.
void Tape::capture_random_state(PendingCall& pending, const c10::IValue* arguments) {
  const std::size_t count = pending.traits.arguments.size();
  const bool may_draw = pending.traits.draws == OperatorTraits::Draws::Perhaps;
  std::vector<at::Generator> generators;
  const auto add = [&](const at::Generator& generator) {
    if (generator.defined() && std::ranges::find(generators, generator) == generators.end())
      generators.push_back(generator);
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (arguments[i].isGenerator()) add(arguments[i].toGenerator());
  }
  const c10::Device device = device_of(arguments, count);
  if ((generators.empty() || may_draw) && !device.is_meta()) add(default_generator(device));
  if (may_draw) add(default_generator(c10::kCPU));
  for (at::Generator& generator : generators)
    calls_.add_random_state(pending.call, save_random_state(std::move(generator)));
}

}  // namespace snug::record
