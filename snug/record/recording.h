#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>

#include "snug/record/tape.h"

namespace snug::record {

/// The key below autograd and autocast on which a boxed fallback sees every ATen operator. LibTorch reserves it for a
/// C++ fake tensor mode (pytorch#183776); until that arrives nothing else uses it.
inline constexpr c10::DispatchKey kRecordingKey = c10::DispatchKey::Fake;

/// The tape that this thread records on now, or nullptr: outside a Recording, and while a backward pass runs that was
/// started inside of it.
const std::shared_ptr<Tape>& recording_tape();

/// Records this thread's operators on a tape for the life of the scope. Scopes nest; the innermost tape records.
class Recording {
 public:
  explicit Recording(std::shared_ptr<Tape> tape);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  std::shared_ptr<Tape> previous_;
  int previous_task_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace snug::record
