#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace snug::optim {

/// Settings of the parameters that a pattern names (see name_matches). Those that are absent stay as they are.
struct GroupRule {
  std::string pattern;
  std::optional<double> weight_decay;
  std::optional<double> learning_rate;  ///< times that of the step

  bool operator==(const GroupRule&) const = default;
};

/// Reads "PATTERN: weight_decay=NUMBER learning_rate=NUMBER; PATTERN: ...", each with one setting at least. Throws
/// UsageError for what is not of that form, and for numbers that are negative or not finite.
std::vector<GroupRule> parse_group_rules(std::string_view text);

/// Of a parameter in bf16 or fp16 there is a master copy in fp32, which is what is updated; the parameter is the master
/// rounded.
struct MasterWeights {};
/// There is none: a parameter in bf16 is raised to fp32, updated, and rounded up or down with the chances that keep its
/// mean (stochastic rounding: Zamirai et al. 2020), so that updates smaller than a rounding step count on the whole.
/// The chances come from the seed, the step and the element alone.
struct StochasticRounding {
  std::uint64_t seed = 0;
};
using FewBitWeights = std::variant<MasterWeights, StochasticRounding>;

/// What a tensor in one dimension is a part of, where several processes update parts of one parameter: elements in
/// their order, from a multiple of 256 on.
struct PartOf {
  at::Tensor whole;
  std::size_t index = 0;   ///< of the whole, among all whole parameters
  std::int64_t first = 0;  ///< element of it
};

/// What an optimizer is made for.
struct Parameters {
  // NOLINTBEGIN(google-explicit-constructor): parameters alone are all that most have
  Parameters(std::vector<at::Tensor> all) : tensors(std::move(all)) {}
  Parameters(std::initializer_list<at::Tensor> all) : tensors(all) {}
  // NOLINTEND(google-explicit-constructor)

  std::vector<at::Tensor> tensors;
  std::vector<std::string> names;  ///< of each of them; none where there are no rules
  std::vector<GroupRule> rules;    ///< later ones win
  FewBitWeights few_bits;
  /// Of each of them; none where all are whole. What becomes of an element is what would become of it in the whole.
  std::vector<PartOf> parts;
  /// Names of those of which other processes have all parts, beside `names`: rules may be of them.
  std::vector<std::string> names_elsewhere;

  /// What tensor `i` is, or is a part of.
  [[nodiscard]] PartOf part(std::size_t i) const { return parts.empty() ? PartOf{tensors[i], i, 0} : parts[i]; }
};

/// Throws UsageError where there are parts: of an optimizer that has to see a parameter whole.
void refuse_parts(const Parameters& parameters, std::string_view optimizer);

/// Parameters that are updated with the same settings.
struct ParameterGroup {
  std::optional<double> weight_decay;  ///< nullopt: the optimizer's
  double learning_rate = 1;            ///< times that of the step
  std::vector<std::size_t> members;    ///< which of the optimizer's parameters
};

/// Weight decay for parameters of two or more dimensions and none for biases and norms, as far as the rules do not say
/// otherwise. Throws UsageError for a rule whose pattern is of no name, and std::logic_error when there are rules and
/// not a name for every parameter.
std::vector<ParameterGroup> grouped(const Parameters& parameters);

}  // namespace snug::optim
