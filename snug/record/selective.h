#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/bytes.h"

namespace snug {

/// What a policy says of the results of one operator. PyTorch's CheckpointPolicy. In a session the plan may overrule
/// what is only preferred; it is made around what must be.
enum class Choice : std::uint8_t {
  PreferRecompute,
  PreferKeep,
  MustRecompute,
  MustKeep,
  Offload  ///< what autograd saves of them leaves the device's memory, as in snug::Offload; preferred, too
};

/// What autograd saves is dropped, and made again in backward by replay.
struct Recompute {
  friend bool operator==(const Recompute&, const Recompute&) = default;
};
/// What autograd saves stays, as without a region.
struct Keep {
  friend bool operator==(const Keep&, const Keep&) = default;
};
/// What autograd saves is moved out of the device's memory, and fetched in backward: from an accelerator's to the
/// CPU's, from the CPU's to a file in TMPDIR. Smaller storages stay. In a session its plan decides.
struct Offload {
  Bytes min_bytes = 1 << 20;
};

/// The operator that a policy is asked about, as it runs.
struct OperatorContext {
  std::string_view name;        ///< with its overload: "aten::addmm", "aten::add.Tensor"
  std::string_view module;      ///< the path of ModuleScope
  std::int64_t invocation = 0;  ///< how many operators of this name ran before in the region
};

/// Asked once for every recorded operator, in forward only; replays obey what it said. Must not call LibTorch.
using SelectivePolicy = std::function<Choice(const OperatorContext&)>;

/// Results of the named operators, and of all operators in the named modules, must be kept; all else is preferred to be
/// made again. A name without an overload means them all. As PyTorch's list for create_selective_checkpoint_contexts.
struct Selective {
  std::vector<std::string> keep = {};
  std::vector<std::string> keep_modules = {};
};

namespace record {

/// Throws UsageError for an operator that there is none of.
SelectivePolicy policy_of(Selective selective);

}  // namespace record
}  // namespace snug
