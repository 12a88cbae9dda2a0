#include "snug/replay/undone_writes.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/record/operator_traits.h"

namespace snug::replay {
UndoneWrites::UndoneWrites(std::function<void(double seconds)> copied)
    : told_(std::move(copied)),
      gate_({.before = [this](const c10::OperatorHandle& op, const torch::jit::Stack& stack) { before(op, stack); },
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
    const c10::Storage storage(c.storage.lock());
    if (!storage || storage.nbytes() == 0) continue;  // weights may be gathered for their use, and freed
    try {
      if (static_cast<Bytes>(storage.nbytes()) < c.contents.bytes()) {
        throw Error(
            fmt::format("step: what it writes cannot be put back as it was: a storage of {} bytes has {} now; a "
                        "step that is recorded must not resize what was there before",
                        c.contents.bytes(), storage.nbytes()));
      }
      c.contents.write_to(storage);
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
                            [this](const at::Tensor& t) { read_.push_back(t.storage().unsafeGetStorageImpl()); });
  }
}

void UndoneWrites::after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (std::size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    record::for_each_stored(stack[i], [this](const at::Tensor& t) {
      if (std::ranges::find(read_, t.storage().unsafeGetStorageImpl()) == read_.end()) leave(t);
    });
  }
}

void UndoneWrites::leave(const at::Tensor& made) {
  if (!made.has_storage()) return;
  made_.emplace(made.storage().unsafeGetStorageImpl(), made.storage().getWeakStorageImpl());
}

Bytes UndoneWrites::copied_bytes() const noexcept {
  Bytes bytes = 0;
  for (const Copy& c : copies_) bytes += c.contents.bytes();
  return bytes;
}

void UndoneWrites::copy(const at::Tensor& written) {
  const c10::Storage& storage = written.storage();
  const c10::StorageImpl* address = storage.unsafeGetStorageImpl();
  if (storage.nbytes() == 0 || storage.device().is_meta() || storage.data() == nullptr) return;
  if (copied_.contains(address) || made_.count(address) != 0) return;
  const double began = monotonic_seconds();
  const at::NoGradGuard no_grad;
  copies_.push_back(
      {storage.getWeakStorageImpl(), memory::Offloaded(storage, static_cast<Bytes>(storage.nbytes()), file_)});
  copied_.insert(address);
  if (told_) told_(monotonic_seconds() - began);
}

}  // namespace snug::replay
