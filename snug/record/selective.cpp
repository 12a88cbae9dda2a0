#include "snug/record/selective.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/base/nearest.h"
#include "snug/plan/step/operator_name.h"

namespace snug::record {

namespace {

std::vector<std::string> all_operators() {
  std::vector<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    names.push_back(name.name);
    if (!name.overload_name.empty()) names.push_back(c10::toString(name));
  }
  return names;
}

/// A name without an overload, or of one: or one of a library's that may be loaded later.
bool may_be_operator(const std::string& name, const std::vector<std::string>& known) {
  const std::size_t colons = name.find("::");
  if (colons == std::string::npos) return false;
  const std::string library = name.substr(0, colons + 2);
  const bool is_known = std::ranges::find(known, name) != known.end();
  return is_known || std::ranges::none_of(known, [&](const std::string& n) { return n.starts_with(library); });
}

/// A program that names an operator which there is none of would keep nothing, without a word. Each name is looked for
/// once.
void check_there_are(const std::vector<std::string>& operators) {
  static std::mutex mutex;
  static std::set<std::string> checked;
  const std::lock_guard lock(mutex);
  for (const std::string& asked : operators) {
    if (checked.contains(asked)) continue;
    const std::vector<std::string> known = all_operators();
    if (!may_be_operator(asked, known)) {
      throw UsageError(fmt::format(
          "selective: keep has \"{}\", and no operator is called so; {}names are as \"aten::mm\", or with an "
          "overload as \"aten::add.Tensor\"",
          asked, did_you_mean(asked, known)));
    }
    checked.insert(asked);
  }
}

}  // namespace

SelectivePolicy policy_of(Selective selective) {
  check_there_are(selective.keep);
  return [selective = std::move(selective)](const OperatorContext& context) {
    const bool keep =
        std::ranges::any_of(selective.keep, [&](const auto& op) { return plan::names_operator(op, context.name); }) ||
        std::ranges::any_of(selective.keep_modules, [&](const auto& m) { return is_in_module(context.module, m); });
    return keep ? Choice::MustKeep : Choice::PreferRecompute;
  };
}

}  // namespace snug::record
