#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>

#include "snug/base/bytes.h"
#include "snug/parallel/process_group.h"

namespace snug::parallel {

/// All parts, which are of one size, one behind the other along that dimension.
at::Tensor gathered(ProcessGroup& group, const at::Tensor& part, std::int64_t dimension = 0);

/// What a gather of parts would bring where all that it brings is there, as in the forward pass of what all have alike.
/// Nothing is sent but by the first three of each size: they are gathered, so that it is known how long that takes
/// (record::say_seconds_again()), and compared, as later nobody looks. One thread at a time, as of the group.
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
  std::map<Bytes, Measured> by_size_;
};

}  // namespace snug::parallel
