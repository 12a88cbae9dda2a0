#include "snug/base/errors.h"

#include <exception>

#include "snug/base/front_end.h"

namespace snug {

void throw_into_libtorch() {
  front_end().translate(std::current_exception());
  throw;
}

}  // namespace snug
