#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace snug {

/// Gives what runs in its life on this thread a name, as part of a path: "blocks.3.mlp". Errors name it, and policies
/// go by it. C++ modules have no hooks that could tell; models say so themselves:
///
///   at::Tensor forward(at::Tensor x) { ModuleScope scope("mlp"); ... }
class ModuleScope {
 public:
  explicit ModuleScope(std::string_view name);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

 private:
  std::size_t length_before_;
};

/// The path of this thread's scopes; empty outside of any.
const std::string& current_module();

/// Whether a path is that of the named module or of one inside it: "blocks.3.mlp" is in "blocks", "3.mlp" and "mlp".
bool is_in_module(std::string_view path, std::string_view name);

/// Whether a parameter ("blocks.3.mlp.weight") is of the named module or one inside it, as is_in_module has it; none is
/// of the module without a name.
bool is_of_module(std::string_view parameter, std::string_view name);

}  // namespace snug
