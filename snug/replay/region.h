#pragma once

#include <memory>

#include "snug/plan/memory_plan.h"

namespace snug {

using plan::Keep;
using plan::Recompute;

/// Sets what happens to the values that operators make while it lives, on this thread:
///
///   { snug::Region region(snug::Recompute{}); y = block(x); }
///
/// Recompute: what autograd saves inside is dropped, and made again in backward by replaying the recorded operators,
/// bitwise as they were: same random numbers, no second update of running statistics, no hook fired twice. Values that
/// leave the region are kept. Keep: as without a region. Regions nest; the innermost wins for the values born in it.
///
/// Inputs are held and must not be modified in place before backward: that is an Error which names the operator and
/// the tensor. Outside of gradient mode a region does nothing. Inside a step of a Session the session's plan decides,
/// and regions change nothing. Not movable: a region belongs to a scope of one thread.
/// After PyTorch's torch.utils.checkpoint, but without calling any function again.
class Region {
 public:
  explicit Region(plan::Action action);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  /// Operators replayed so far for values of this region's tape.
  [[nodiscard]] std::int64_t replayed_ops() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace snug
