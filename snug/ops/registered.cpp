#include "snug/ops/registered.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "snug/base/errors.h"

namespace snug::ops {

void only_once(const char* operation) {
  if (!at::GradMode::is_enabled()) return;
  throw_into_libtorch(Error(fmt::format(
      "{}: it can be differentiated once; its gradient was asked for with create_graph, leave that out", operation)));
}

}  // namespace snug::ops
