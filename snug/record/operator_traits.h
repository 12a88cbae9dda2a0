#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug::record {

/// What the recorder has to know of an operator, read from its schema once. The rest of this header's tables are the
/// facts that schemas do not tell.
struct OperatorTraits {
  enum class Argument : std::uint8_t { Tensor, TensorList, OptionalTensorList, Generator, Other };

  std::string name;  ///< "aten::addmm", with ".overload" unless that is empty
  std::uint64_t hash = 0;
  std::vector<Argument> arguments;
  std::vector<char> writes;  ///< per argument: the schema says it is written
  bool writes_any = false;
  bool seeded = false;         ///< draws from a random generator
  bool uninitialized = false;  ///< results have unspecified contents: empty and kin
  bool overwrites = false;     ///< written arguments are replaced whole, their old contents are not read
  int scratch_result = -1;     ///< position of a result whose bits prove nothing, or -1
  /// When the version of what the schema says is written rises, if not inside of the kernel.
  enum class Raises : std::uint8_t { Never, BeforeTheKernel, AfterTheKernel } raises = Raises::Never;
  bool rebinds = false;                      ///< gives a tensor another storage (set_)
  bool collective = false;                   ///< runs together with other processes
  std::vector<int> hidden_writes;            ///< arguments that are written though the schema does not say so
  std::optional<int> hidden_writes_only_if;  ///< ... when this boolean argument is true
};

/// The traits of `op`; found by the address of its schema after the first time. Any thread.
const OperatorTraits& traits_of(const c10::OperatorHandle& op);

}  // namespace snug::record
