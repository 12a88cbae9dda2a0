#pragma once

#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/record/saved_counts.h"
#include "snug/record/selective.h"
#include "snug/record/verify_replay.h"

namespace snug {

/// What happens to the values that operators make in a region.
using RegionAction = std::variant<Recompute, Keep, Offload, Selective, SelectivePolicy>;

struct RegionOptions {
  /// Remembers what is dropped and compares it when it is recomputed; a replay that makes other bits throws Error,
  /// naming the operator, its module and the place. Holds for the whole tape: this region and those around and in it
  /// from here on. Once: what a region at this place in the program drops is compared the first time, and then one
  /// value now and then; within a step of a Session the session decides.
  VerifyReplay verify_replay = VerifyReplay::Once;
  /// A hash of the place in the program, for Once. 0: that of the caller of Region's constructor.
  std::uint64_t place = 0;
  /// Throws Error at the first recorded result with a NaN or an infinity, in forward or in a replay, naming operator
  /// and module. For the whole tape, too. Slow.
  bool detect_anomalies = false;
};

/// Sets what happens to the values that operators make while it lives, on this thread:
///
///   { snug::Region region(snug::Recompute{}); y = block(x); }
///
/// Recompute: what autograd saves inside is dropped, and made again in backward by replaying the recorded operators,
/// bitwise as they were: same random numbers, no second update of running statistics, no hook fired twice. Values that
/// leave the region are kept. Keep: as without a region. Offload: what autograd saves leaves the device's memory and
/// comes back in backward; where it cannot be written, it stays, and the next operator throws. Selective, or a policy
/// of your own: each operator's results by what it says, as in PyTorch's selective activation checkpointing:
///
///   { snug::Region region(snug::Selective{.keep = {"aten::mm", "aten::addmm"}}); y = block(x); }
///
/// Regions nest; the innermost wins for the values born in it.
///
/// Inputs are held and must not be modified in place before backward: that is an Error which names the operator and
/// the tensor. Outside of gradient mode a region does nothing. Inside a step of a Session the session's plan decides:
/// it is made around what a policy says must be, and nothing else of a region counts. Not movable: a region belongs to
/// a scope of one thread. After PyTorch's torch.utils.checkpoint, but without calling any function again.
class Region {
 public:
  explicit Region(RegionAction action, RegionOptions options = {},
                  std::source_location where = std::source_location::current());
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  /// Ends the region before its scope does. What it tells stays.
  void close();

  /// Operators replayed so far for values of this region's tape.
  [[nodiscard]] std::int64_t replayed_ops() const;
  /// What became of the tensors that autograd saved on this region's tape and that are still waiting for backward.
  [[nodiscard]] record::SavedCounts saved_tensors() const;
  /// Bytes of this region's tape that have left the device's memory.
  [[nodiscard]] Bytes offloaded_bytes() const;
  /// What this region's tape keeps because something outside of ATen filled it: a line for each, with the cure.
  [[nodiscard]] std::vector<std::string> opaque_values() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace snug
