#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>

#include "snug/base/bytes.h"
#include "snug/parallel/process_group.h"

namespace snug::parallel {

/// All parts, which are dense and of one size, one behind the other: of one dimension.
at::Tensor gathered(ProcessGroup& group, const at::Tensor& part);

/// What a gather of parts would bring where all that it brings is there, as in the forward pass of what all have alike.
/// Nothing is sent but by the first three of each size: they are gathered, so that it is known how long that takes
/// (record::say_seconds_again()), and compared, as later nobody looks.
class KeptParts {
 public:
  /// What all have one part of each, as a copy of `whole`, which it is. All processes of the group call it alike.
  /// Throws Error, in all, where it is not the same in all of them.
  at::Tensor whole_of(ProcessGroup& group, const at::Tensor& part, const at::Tensor& whole);

 private:
  struct Measured {
    int times = 0;
    double least = 0;  // seconds
  };
  std::mutex mutex_;
  std::map<Bytes, Measured> by_size_;
};

}  // namespace snug::parallel
