#include <fmt/format.h>
#include <fmt/ranges.h>

#include "snug/base/errors.h"
#include "snug/base/nearest.h"
#include "snug/optim/optimizer.h"

namespace snug::optim {

// An optimizer is a file that defines <name>_kind(), and a line here.
// clang-format off
#define SNUG_OPTIMIZERS(optimizer) \
  optimizer(adamw) \
  optimizer(adamw_8bit) \
  optimizer(adafactor) \
  optimizer(lion) \
  optimizer(muon) \
  optimizer(sgd) \
  // the end
// clang-format on

#define SNUG_DECLARE(name) const OptimizerKind& name##_kind();
SNUG_OPTIMIZERS(SNUG_DECLARE)
#undef SNUG_DECLARE

const std::vector<const OptimizerKind*>& optimizer_kinds() {
#define SNUG_ADDRESS(name) &name##_kind(),
  static const std::vector<const OptimizerKind*> kinds{SNUG_OPTIMIZERS(SNUG_ADDRESS)};
#undef SNUG_ADDRESS
  return kinds;
}
#undef SNUG_OPTIMIZERS

const OptimizerKind& optimizer_kind(std::string_view name) {
  std::vector<std::string> names;
  for (const OptimizerKind* kind : optimizer_kinds()) {
    if (kind->name == name) return *kind;
    names.emplace_back(kind->name);
  }
  throw UsageError(fmt::format("optimizer: \"{}\" is not known; {}it must be one of {}", name,
                               did_you_mean(name, names), fmt::join(names, ", ")));
}

}  // namespace snug::optim
