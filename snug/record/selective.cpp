#include "snug/record/selective.h"

#include <algorithm>
#include <utility>

#include "snug/base/module_scope.h"
#include "snug/plan/step/operator_name.h"

namespace snug::record {

SelectivePolicy policy_of(Selective selective) {
  return [selective = std::move(selective)](const OperatorContext& context) {
    const bool keep =
        std::ranges::any_of(selective.keep, [&](const auto& op) { return plan::names_operator(op, context.name); }) ||
        std::ranges::any_of(selective.keep_modules, [&](const auto& m) { return is_in_module(context.module, m); });
    return keep ? Choice::MustKeep : Choice::PreferRecompute;
  };
}

}  // namespace snug::record
