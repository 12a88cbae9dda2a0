#include "snug/report/budget_text.h"

#include "snug/plan/budget.h"
#include "snug/report/count.h"

namespace snug::report {

std::string budget_text(Bytes limit, Bytes unplanned_peak, int digits) {
  return format_bytes(limit) + format_share(plan::Budget::for_limit(limit).for_blocks(), unplanned_peak, digits);
}

}  // namespace snug::report
