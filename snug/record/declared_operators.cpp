#include "snug/record/declared_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <initializer_list>
#include <map>
#include <mutex>
#include <utility>

#include "snug/base/errors.h"

namespace snug::record {
namespace {

/// Of LibTorch's operators: running statistics, the state that cuDNN draws from, what another process sends; and
/// workspaces of their backward.
std::map<std::string, OperatorDeclaration> libtorchs() {
  const OperatorDeclaration all[] = {
      {"aten::native_batch_norm", {3, 4}, 5, {}},
      {"aten::cudnn_batch_norm", {3, 4}, 5, 3},
      {"aten::miopen_batch_norm", {3, 4}, 5, {}},
      {"aten::_batch_norm_impl_index", {3, 4}, 5, {}},
      {"aten::batch_norm_update_stats", {1, 2}, {}, {}},
      {"aten::batch_norm_gather_stats", {3, 4}, {}, {}},
      {"aten::batch_norm_gather_stats_with_counts", {3, 4}, {}, {}},
      {"aten::_cudnn_rnn", {15}, 12, 3},
      {"aten::miopen_rnn", {13}, 10, 3},
      {"_c10d_functional::irecv", {0}, {}, {}},
      {"_c10d_functional::batch_p2p_ops", {3}, {}, {}},
      {"aten::mkldnn_rnn_layer", {}, {}, 3},
      {"aten::_batch_norm_with_update", {}, {}, 3},
      {"aten::_ctc_loss", {}, {}, 1},
  };
  std::map<std::string, OperatorDeclaration> by_name;
  for (const OperatorDeclaration& declaration : all) by_name.emplace(declaration.name, declaration);
  return by_name;
}

struct Declared {
  std::mutex mutex;
  std::map<std::string, OperatorDeclaration> by_name = libtorchs();
  std::atomic<std::uint64_t> count = 0;
};

/// Until the process ends: threads may record as it does.
Declared& declared() {
  static auto* all = new Declared;
  return *all;
}

[[noreturn]] void refuse(const OperatorDeclaration& d, const std::string& why) {
  throw UsageError(fmt::format("declare_operator: {}: {}", d.name, why));
}

bool is_name(const std::string& name) {
  const std::size_t colons = name.find("::");
  if (colons == std::string::npos || colons == 0 || colons + 2 >= name.size()) return false;
  return std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == ':'; });
}

/// What an operator that is known has at those positions, in one of its overloads.
void check_schemas(const OperatorDeclaration& d) {
  bool is_known = false;
  const auto somewhere = [&](int position, const auto& fits) {
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (name.name != d.name) continue;
      const auto op = c10::Dispatcher::singleton().findSchema(name);
      if (!op) continue;
      is_known = true;
      if (fits(op->schema(), static_cast<std::size_t>(position))) return true;
    }
    return !is_known;
  };
  const auto is_tensor = [](const c10::FunctionSchema& schema, std::size_t i) {
    if (i >= schema.arguments().size()) return false;
    c10::TypePtr type = schema.arguments()[i].type();
    for (;;) {  // Tensor?[] is a list of optional ones
      if (const auto optional = type->cast<c10::OptionalType>()) {
        type = optional->getElementType();
      } else if (const auto list = type->cast<c10::ListType>()) {
        type = list->getElementType();
      } else {
        return type->kind() == c10::TypeKind::TensorType;
      }
    }
  };
  const auto is_bool = [](const c10::FunctionSchema& schema, std::size_t i) {
    return i < schema.arguments().size() && schema.arguments()[i].type()->kind() == c10::TypeKind::BoolType;
  };
  for (const int position : d.writes) {
    if (!somewhere(position, is_tensor))
      refuse(d, fmt::format("no tensor is argument {} (they count from 0), which it is said to write", position));
  }
  if (d.writes_only_if && !somewhere(*d.writes_only_if, is_bool))
    refuse(d, fmt::format("argument {} (they count from 0) is no bool, which writes_only_if is of", *d.writes_only_if));
  const auto has_result = [](const c10::FunctionSchema& schema, std::size_t i) { return i < schema.returns().size(); };
  if (d.scratch_result && !somewhere(*d.scratch_result, has_result))
    refuse(d, fmt::format("it has no result {} (they count from 0), which scratch_result is", *d.scratch_result));
}

void check(const OperatorDeclaration& d) {
  if (!is_name(d.name)) {
    throw UsageError(fmt::format(
        "declare_operator: \"{}\" is not the name of an operator; write its namespace and name, without an overload, "
        "as in \"mine::normalize\"",
        d.name));
  }
  const auto negative = [&](const char* what, int position) {
    if (position < 0) refuse(d, fmt::format("{} is at {}; positions count from 0", what, position));
  };
  for (const int position : d.writes) negative("an argument that is written", position);
  negative("writes_only_if", d.writes_only_if.value_or(0));
  negative("scratch_result", d.scratch_result.value_or(0));
  check_schemas(d);
}

void add_what_is_not_said(const OperatorDeclaration& known, OperatorDeclaration& declaration) {
  if (declaration.writes.empty()) {
    declaration.writes = known.writes;
    if (!declaration.writes_only_if) declaration.writes_only_if = known.writes_only_if;
  }
  if (!declaration.scratch_result) declaration.scratch_result = known.scratch_result;
  if (!declaration.draws) declaration.draws = known.draws;
  if (!declaration.keeps_state) declaration.keeps_state = known.keeps_state;
}

}  // namespace

void declare_operator(OperatorDeclaration declaration) {
  check(declaration);
  Declared& all = declared();
  const std::lock_guard lock(all.mutex);
  std::string name = declaration.name;
  if (const auto known = all.by_name.find(name); known != all.by_name.end())
    add_what_is_not_said(known->second, declaration);
  all.by_name.insert_or_assign(std::move(name), std::move(declaration));
  ++all.count;
}

std::optional<OperatorDeclaration> declaration_of(const std::string& name) {
  Declared& all = declared();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_name.find(name);
  return found == all.by_name.end() ? std::nullopt : std::optional(found->second);
}

std::uint64_t declarations() noexcept { return declared().count.load(std::memory_order_acquire); }

}  // namespace snug::record
