#include "snug/record/hidden_writes.h"

#include <algorithm>
#include <utility>

#include "snug/record/operator_traits.h"
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
  return !watched.found_.empty();
}

HiddenWrites::HiddenWrites(const OperatorTraits& traits, const torch::jit::Stack& stack)
    : outer_(std::exchange(t_here, this)), seen_(with_recorder()) {
  for (std::size_t i = stack.size() - traits.arguments.size(); i < stack.size(); ++i)
    for_each_tensor(stack[i], [&](const at::Tensor& tensor) { add_own(tensor); });
}

HiddenWrites::~HiddenWrites() { t_here = outer_; }

HiddenWrites* HiddenWrites::here() noexcept { return t_here; }

void HiddenWrites::run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const OperatorTraits& traits = traits_of(op);
  std::vector<const void*> given;
  {
    const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
    // torch.tensor() allocates below the dispatcher; these two, which change no contents, are all that is seen of it.
    if (traits.name == "aten::lift_fresh") add_own(arguments_on(stack, traits)->toTensor());
    if (traits.name != "aten::detach_")
      for_each_written(traits, arguments_on(stack, traits), [&](const at::Tensor& tensor) { writes(tensor); });
    for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
      for_each_tensor(arguments_on(stack, traits)[i], [&](const at::Tensor& tensor) {
        if (tensor.has_storage()) given.push_back(tensor.storage().unsafeGetStorageImpl());
      });
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
  for (const HiddenWrites* scope = this; scope != nullptr; scope = scope->outer_) {
    if (scope->own_.contains(storage)) return;
  }
  const auto is_it = [&](const at::Tensor& t) { return t.storage().unsafeGetStorageImpl() == storage; };
  if (std::ranges::any_of(found_, is_it)) return;
  OperatorGate::tell_before_write(tensor);
  if (const auto& tape = recording_tape()) tape->written_elsewhere(tensor.storage().unsafeGetStorageImpl());
  found_.push_back(tensor);
}

void HiddenWrites::add_own(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  const c10::Storage& storage = tensor.storage();
  own_.try_emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
}

}  // namespace snug::record
