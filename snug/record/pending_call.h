#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <vector>

#include "snug/plan/step/ids.h"
#include "snug/record/call_log.h"
#include "snug/record/operator_traits.h"
#include "snug/record/region_stack.h"
#include "snug/record/seen_version.h"

namespace snug::record {

/// A tensor argument that a call is about to write.
struct WrittenTensor {
  OutputSlot slot;
  at::Tensor tensor;
  plan::ValueId before;  ///< the value that it writes over
  bool whole;            ///< all of it is replaced, and none read
  SeenVersion version;   ///< before the kernel
};

/// The lists of a call that is being recorded. A tape has them once: recording a call allocates no new ones.
struct PendingLists {
  std::vector<plan::ValueId> inputs;
  std::vector<WrittenTensor> written;
  std::vector<c10::StorageImpl*> input_storages;
  std::vector<at::Tensor> results;  ///< for observers

  void clear() {
    inputs.clear();
    written.clear();
    input_storages.clear();
    results.clear();
  }
};

/// A call between its arrival and its place on the tape.
struct PendingCall {
  const OperatorTraits& traits;
  CallLog::Mark mark;  ///< where its parts begin
  Call call;
  PendingLists& lists;
  std::uint64_t signature = 0;
  double seconds = 0;
  RegionVerdict verdict = {};
  bool hides_writes = false;            ///< its kernel has written what it was not given
  std::vector<at::Tensor> let_go = {};  ///< that the tape has held, and that may run the program's code as they go
};

}  // namespace snug::record
