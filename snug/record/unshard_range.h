#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>

namespace snug::record {

/// The ranges that FSDP2 (torch.distributed.fsdp.fully_shard) marks for profilers around what it does before and behind
/// a module's forward and backward pass: it gathers weights into storages that stay the same, and frees them, by
/// resizing these. Operators in there are no part of the step, and what they write into storages that the step reads is
/// what was in there before. But for its casts of a module's inputs and outputs, which are operators of the step as any
/// other. Of the calling thread.
class UnshardRange {
 public:
  /// A range of a profiler has begun (`result`: what LibTorch calls it) or ends, as that operator says.
  static void begun(std::string_view name, const c10::IValue& result);
  static void ended(const c10::IValue& which);
  /// Whether the thread is in one.
  [[nodiscard]] static bool here() noexcept;
  /// Whether it is in one in which weights are gathered: what is written there was there before. Others are for
  /// gradients.
  [[nodiscard]] static bool gathers() noexcept;
  /// The outermost that it is in: another number for each.
  [[nodiscard]] static int number() noexcept;
};

}  // namespace snug::record
