#include "snug/replay/undone_writes.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>

#include <exception>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/owned_contents.h"
#include "snug/record/unseen.h"

namespace snug::replay {
namespace {

/// Its life is left out.
auto left_out(record::StepClock* clock) {
  return c10::make_scope_exit([clock, began = clock != nullptr ? clock->now() : 0] {
    if (clock != nullptr) clock->leave_out(began, clock->now());
  });
}

}  // namespace

UndoneWrites::UndoneWrites(record::StepClock* clock)
    : clock_(clock), gate_({.before_write = [this](const at::Tensor& written) { copy(written); }}) {}

UndoneWrites::~UndoneWrites() {
  try {
    undo();
  } catch (...) {  // on the way of another error, which is reported
  }
}

void UndoneWrites::undo() {
  const auto clock = left_out(clock_);
  const at::NoGradGuard no_grad;
  std::exception_ptr failure;
  const std::vector<Copy> copies = std::exchange(copies_, {});
  for (auto at = copies.rbegin(); at != copies.rend(); ++at) {
    const Copy& c = *at;
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

Bytes UndoneWrites::copied_bytes() const noexcept {
  Bytes bytes = 0;
  for (const Copy& c : copies_) bytes += c.contents.bytes();
  return bytes;
}

void UndoneWrites::copy(const at::Tensor& written) {
  if (pauses_ > 0) return;
  const c10::Storage& storage = written.storage();
  // Of tensors that a compiler traces, not even sizes are known.
  if (storage.device().is_meta() || storage.nbytes() == 0) return;
  if (storage.data() == nullptr && !memory::has_owner(written)) return;
  const std::lock_guard lock(mutex_);
  if (copied_.contains(storage.unsafeGetStorageImpl()) || memory::allocated_since(storage, began_)) return;
  const auto clock = left_out(clock_);
  const record::Unseen unseen;
  copies_.push_back({storage.getWeakStorageImpl(),
                     memory::Offloaded(storage, static_cast<Bytes>(storage.nbytes()), tiers_),
                     storage.allocator() == nullptr ? storage : c10::Storage()});
  copied_.insert(storage.unsafeGetStorageImpl());
}

}  // namespace snug::replay
