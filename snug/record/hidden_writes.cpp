#include "snug/record/hidden_writes.h"

#include <algorithm>
#include <utility>

#include "snug/record/operator_traits.h"
#include "snug/record/random_state.h"
#include "snug/record/recording.h"
#include "snug/record/recording_key.h"
#include "snug/record/tape.h"

namespace snug::record {
namespace {

thread_local HiddenWrites* t_here = nullptr;

c10::impl::LocalDispatchKeySet with_recorder() {
  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  keys.included_ = keys.included_.add(kRecordingKey);
  keys.excluded_ = keys.excluded_.remove(kRecordingKey);
  return keys;
}

}  // namespace

bool HiddenWrites::run_kernel(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet keys,
                              torch::jit::Stack& stack) {
  if (traits.keeps_state == OperatorTraits::KeepsState::Never) {
    op.redispatchBoxed(keys, &stack);
    return false;
  }
  const HiddenWrites watched(traits, stack);
  op.redispatchBoxed(keys, &stack);
  return watched.keeps_state(stack, op.schema().returns().size());
}

HiddenWrites::HiddenWrites(const OperatorTraits& traits, const torch::jit::Stack& stack)
    : outer_(std::exchange(t_here, this)), given_(default_generators()), seen_(with_recorder()) {
  for (std::size_t i = stack.size() - traits.arguments.size(); i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) { add_own(tensor, /*is_argument=*/true); });
    if (stack[i].isGenerator()) given_.push_back(stack[i].toGenerator());
  }
}

HiddenWrites::~HiddenWrites() { t_here = outer_; }

HiddenWrites* HiddenWrites::here() noexcept { return t_here; }

void HiddenWrites::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const OperatorTraits& traits = traits_of(op);
  std::vector<const void*> given;
  {
    const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
    // torch.tensor() allocates below the dispatcher; these two, which change no contents, are all that is seen of it.
    // torch.from_numpy() calls the first, too, for memory that may be another's.
    if (traits.name == "aten::lift_fresh") {
      const at::Tensor& lifted = arguments_on(stack, traits)->toTensor();
      if (lifted.has_storage() && memory::allocated_since(lifted.storage(), began_)) add_own(lifted);
    }
    if (traits.name != "aten::detach_")
      for_each_written(traits, arguments_on(stack, traits), [&](const at::Tensor& tensor) { writes(tensor); });
    for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
      const c10::IValue& argument = arguments_on(stack, traits)[i];
      for_each_tensor(argument, [&](const at::Tensor& tensor) {
        if (tensor.has_storage()) given.push_back(tensor.storage().unsafeGetStorageImpl());
      });
      if (argument.isGenerator()) draws(argument.toGenerator());
    }
  }
  if (traits.foreign) {  // its kernel is watched, too
    op.redispatchBoxed(keys, &stack);
  } else {
    const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
    op.redispatchBoxed(keys, &stack);
  }
  const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
  for (std::size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      // A view of something else makes nothing.
      if (tensor.has_storage() && std::ranges::find(given, tensor.storage().unsafeGetStorageImpl()) == given.end())
        add_own(tensor);
    });
  }
}

void HiddenWrites::writes(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const void* storage = tensor.storage().unsafeGetStorageImpl();
  if (const auto own = own_.find(storage); own != own_.end()) {
    own->second.written = true;
    return;
  }
  const auto is_it = [&](const at::Tensor& t) { return t.storage().unsafeGetStorageImpl() == storage; };
  if (std::ranges::any_of(found_, is_it)) return;
  OperatorGate::tell_before_write(tensor);
  tell_finished_tapes(tensor);
  if (const auto& tape = recording_tape()) {
    tape->written_elsewhere(tensor.storage().unsafeGetStorageImpl());
    tape->note_written(tensor, Tape::Version::MayStay);
  }
  found_.push_back(tensor);
}

void HiddenWrites::draws(const at::Generator& generator) {
  if (!generator.defined() || std::ranges::find(given_, generator) != given_.end()) return;
  OperatorGate::tell_before_draw(generator);
  draws_ = true;
}

void HiddenWrites::add_own(const at::Tensor& tensor, bool is_argument) {
  if (!tensor.has_storage()) return;
  const c10::Storage& storage = tensor.storage();
  own_.try_emplace(storage.unsafeGetStorageImpl(), Own{storage.getWeakStorageImpl(), is_argument});
}

bool HiddenWrites::keeps_state(const torch::jit::Stack& stack, std::size_t results) const {
  if (!found_.empty() || draws_) return true;
  std::vector<const void*> returned;
  for (std::size_t i = stack.size() - results; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (tensor.has_storage()) returned.push_back(tensor.storage().unsafeGetStorageImpl());
    });
  }
  return std::ranges::any_of(own_, [&](const auto& entry) {
    const Own& own = entry.second;
    return own.written && !own.is_argument && own.storage.use_count() > 0 &&
           std::ranges::find(returned, entry.first) == returned.end();
  });
}

}  // namespace snug::record
