#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug::record {

/// What the schema of an operator does not tell, and recording and replay must know. Positions count arguments, and
/// results, from 0.
struct OperatorDeclaration {
  std::string name;  ///< "mine::normalize", which all its overloads are meant by
  /// Arguments that it writes though its schema does not say so, as running statistics: a replay is to write copies.
  std::vector<int> writes = {};
  std::optional<int> writes_only_if = {};  ///< ... when this argument, of type bool, is true
  /// A result that only the operator's own backward understands and that may hold bytes which nobody wrote: its bits
  /// prove nothing where replays are compared.
  std::optional<int> scratch_result = {};
  /// Whether it draws random numbers. Without a word the tape looks whether a generator moves while it runs, which a
  /// thread that draws at the same time confuses.
  std::optional<bool> draws = {};
  /// Whether it keeps a state outside of its tensors, such as a counter: it runs once and its results are kept. Without
  /// a word operators with a script object (torchbind) among their arguments do.
  std::optional<bool> keeps_state = {};
};

/// From now on holds for the operator, and what this one does not say stays as it was declared before, or is known of
/// LibTorch's own. The operator need not be registered yet. Not while a step runs. Throws UsageError for a name
/// that is none, for positions that are negative, and for those at which an operator that is registered has nothing of
/// the kind. Any thread.
void declare_operator(OperatorDeclaration declaration);

/// What is declared of an operator; nothing where there is no such declaration.
std::optional<OperatorDeclaration> declaration_of(const std::string& name);

/// Rises with each declaration.
std::uint64_t declarations() noexcept;

}  // namespace snug::record

namespace snug {
using record::declare_operator, record::OperatorDeclaration;
}
