#include "snug/replay/undone_writes.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <exception>
#include <utility>

#include "snug/base/errors.h"
#include "snug/record/operator_traits.h"

namespace snug::replay {
UndoneWrites::UndoneWrites()
    : gate_({.before = [this](const c10::OperatorHandle& op, const torch::jit::Stack& stack) { before(op, stack); },
             .before_write = [this](const at::Tensor& written) { copy(written); },
             .after = [this](const c10::OperatorHandle& op, const torch::jit::Stack& stack) { after(op, stack); }}) {}

UndoneWrites::~UndoneWrites() {
  try {
    undo();
  } catch (...) {  // on the way of another error, which is reported
  }
}

void UndoneWrites::undo() {
  const at::NoGradGuard no_grad;
  std::exception_ptr failure;
  for (const Copy& c : std::exchange(copies_, {})) {
    try {
      if (static_cast<Bytes>(c.storage.nbytes()) < c.contents.bytes()) {
        throw Error(
            fmt::format("step: what it updates cannot be put back as it was: a storage of {} bytes has {} now; a "
                        "step that is recorded must not resize what was there before",
                        c.contents.bytes(), c.storage.nbytes()));
      }
      c.contents.write_to(c.storage);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  copied_.clear();
  if (failure) std::rethrow_exception(failure);
}

void UndoneWrites::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  read_.clear();
  for (std::size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    record::for_each_stored(stack[i],
                            [this](const at::Tensor& t) { read_.insert(t.storage().unsafeGetStorageImpl()); });
  }
}

void UndoneWrites::after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (std::size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    record::for_each_stored(stack[i], [this](const at::Tensor& t) {
      const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
      if (!read_.contains(storage)) made_.insert_or_assign(storage, t.storage().getWeakStorageImpl());
    });
  }
}

void UndoneWrites::copy(const at::Tensor& written) {
  const c10::Storage& storage = written.storage();
  const c10::StorageImpl* address = storage.unsafeGetStorageImpl();
  if (storage.nbytes() == 0 || copied_.contains(address)) return;
  if (const auto made = made_.find(address); made != made_.end() && !made->second.expired()) return;
  const at::NoGradGuard no_grad;
  copies_.push_back({storage, memory::Offloaded(storage, static_cast<Bytes>(storage.nbytes()), file_)});
  copied_.insert(address);
}

}  // namespace snug::replay
