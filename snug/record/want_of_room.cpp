#include "snug/record/want_of_room.h"

#include "snug/base/errors.h"
#include "snug/memory/out_of_budget.h"

namespace snug::record {

bool is_want_of_room(const std::exception_ptr& thrown) {
  if (memory::refusal_in(thrown)) return true;
  try {
    std::rethrow_exception(thrown);
  } catch (const Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace snug::record
