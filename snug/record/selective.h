#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace snug {

/// What a policy says of the results of one operator. PyTorch's CheckpointPolicy. In a session the plan may overrule
/// what is only preferred; it is made around what must be.
enum class Choice : std::uint8_t { PreferRecompute, PreferKeep, MustRecompute, MustKeep };

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

SelectivePolicy policy_of(Selective selective);

/// Whether an operator's name with its overload is the one that is meant: "aten::add.Tensor" is "aten::add" too.
bool names_operator(std::string_view meant, std::string_view name);

}  // namespace record
}  // namespace snug
