#include "snug/plan/run/prefetch.h"

namespace snug::plan {

void Prefetch::asked_for(ValueId value) {
  const auto found = early_.find(value);
  if (found == early_.end()) return;
  ahead_ -= found->second;
  early_.erase(found);
}

}  // namespace snug::plan
