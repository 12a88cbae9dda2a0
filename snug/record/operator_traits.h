#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "snug/plan/step/dataflow.h"

namespace snug::record {

/// What the recorder has to know of an operator: read from its schema once, and, for what schemas do not tell, from the
/// tables in operator_traits.cpp and declared_operators.cpp.
struct OperatorTraits {
  enum class Argument : std::uint8_t {
    Tensor,
    TensorList,
    OptionalTensorList,
    Nested,  ///< tensors in lists of lists, in dictionaries or tuples
    Generator,
    Object,  ///< a script object, which may have a state
    Other
  };

  std::string name;  ///< "aten::addmm", with ".overload" unless that is empty
  std::uint64_t hash = 0;
  std::vector<Argument> arguments;
  std::vector<char> writes;      ///< per argument: the schema says it is written
  std::vector<char> overwrites;  ///< per argument: it is, and replaced whole, so that its old contents are not read
  bool writes_any = false;
  bool only_writes = false;  ///< it returns nothing but what it writes, as in-place operators do
  /// Whether it draws from a random generator. Perhaps: it is not LibTorch's, and whether a generator moved while it
  /// ran tells.
  enum class Draws : std::uint8_t { Never, Perhaps, Always } draws = Draws::Never;
  /// Whether it has a state outside of its tensors, and runs once. Perhaps: it is not LibTorch's, nobody has declared
  /// it, and whether its kernel writes a tensor that it was not given tells (HiddenWrites).
  enum class KeepsState : std::uint8_t { Never, Perhaps, Always } keeps_state = KeepsState::Never;
  bool uninitialized = false;  ///< results have unspecified contents: empty and kin
  int scratch_result = -1;     ///< position of a result whose bits prove nothing, or -1
  /// When LibTorch raises the version counters of what the schema says is written: before the kernel that the recorder
  /// runs, after it, or not at all (but inside of the kernel). Perhaps: after it, or not, as operators on lists.
  enum class Raises : std::uint8_t { Never, BeforeTheKernel, AfterTheKernel, Perhaps } raises = Raises::Never;
  bool rebinds = false;  ///< gives a tensor another storage (set_)
  /// Whether it runs together with other processes, once. FillsLater: its results are there when an operator that
  /// Waits, whose first argument they are, has run.
  enum class Collective : std::uint8_t { No, AtOnce, FillsLater, Waits } collective = Collective::No;
  plan::Runs runs = plan::Runs::Alone;  ///< of one that may run again
  /// What it reads of its tensors: nothing of their contents, as views and `empty_like`; or elements, each by itself,
  /// as those of LibTorch do that have the tag `pointwise`.
  enum class Reads : std::uint8_t { Nothing, Elements, Anything } reads = Reads::Anything;
  bool foreign = false;     ///< neither LibTorch's nor snug's
  bool composite = false;   ///< has a kernel that is made of other operators and their gradients
  bool annotation = false;  ///< begins or ends a range of a profiler, and computes nothing
  struct HiddenWrites {
    std::vector<int> positions;  ///< arguments that are written though the schema does not say so
    std::optional<int> only_if;  ///< ... when this boolean argument is true
  } hidden_writes;

  /// Whether some call writes the argument at `position`.
  [[nodiscard]] bool may_write(std::size_t position) const;
};

/// Whether what the operator writes may keep its version, so that nobody but who runs it knows.
inline bool writes_without_version(const OperatorTraits& traits) {
  const bool never_raises = traits.writes_any && traits.raises == OperatorTraits::Raises::Never;
  return never_raises || !traits.hidden_writes.positions.empty();
}

/// Whether a call with these arguments writes the one at `position`, be it that its schema says so or not.
bool writes(const OperatorTraits& traits, const c10::IValue* arguments, std::size_t position);

/// The traits of `op`; found by the address of its schema after the first time. Any thread.
const OperatorTraits& traits_of(const c10::OperatorHandle& op);

/// Rises when an operator is removed: then handles of operators may be dangling.
std::uint64_t operator_removals() noexcept;

/// Each tensor in a value that is defined, be it in lists, dictionaries or tuples.
template <class Call>
void for_each_tensor(const c10::IValue& value, const Call& call) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) call(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) for_each_tensor(item, call);
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) for_each_tensor(item.value(), call);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) for_each_tensor(item, call);
  }
}

/// The arguments of a call, which are the last values of a stack.
inline const c10::IValue* arguments_on(const torch::jit::Stack& stack, const OperatorTraits& traits) {
  return stack.data() + (stack.size() - traits.arguments.size());
}

/// Calls `call(tensor)` with each tensor of a storage among the arguments that an operator of these traits writes.
template <class Call>
void for_each_written(const OperatorTraits& traits, const c10::IValue* arguments, const Call& call) {
  const auto stored = [&](const at::Tensor& tensor) {
    if (tensor.has_storage()) call(tensor);
  };
  for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
    if (writes(traits, arguments, i)) for_each_tensor(arguments[i], stored);
  }
}

/// Whether the call cannot be replayed: it has tensors that no value can stand for (sparse, quantized, of a subclass,
/// or in nested containers), whose later writes nothing would show, or the operator keeps a state outside of its
/// tensors.
bool is_beyond_values(const OperatorTraits& traits, const c10::IValue* arguments);

}  // namespace snug::record
