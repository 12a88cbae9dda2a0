#include "snug/record/declared_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
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

void check(const OperatorDeclaration& d) {
  const std::size_t colons = d.name.find("::");
  if (colons == std::string::npos || colons == 0 || colons + 2 >= d.name.size() ||
      d.name.find('.') != std::string::npos) {
    throw UsageError(fmt::format(
        "declare_operator: \"{}\" is not the name of an operator; write its namespace and name, without an overload, "
        "as in \"mine::normalize\"",
        d.name));
  }
  const auto refuse = [&](const char* what, int position) {
    throw UsageError(
        fmt::format("declare_operator: {} of {} is at {}; positions count from 0", what, d.name, position));
  };
  for (const int position : d.writes) {
    if (position < 0) refuse("an argument that is written", position);
  }
  if (d.writes_only_if && *d.writes_only_if < 0) refuse("writes_only_if", *d.writes_only_if);
  if (d.scratch_result && *d.scratch_result < 0) refuse("scratch_result", *d.scratch_result);
}

}  // namespace

void declare_operator(OperatorDeclaration declaration) {
  check(declaration);
  Declared& all = declared();
  const std::lock_guard lock(all.mutex);
  std::string name = declaration.name;
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
