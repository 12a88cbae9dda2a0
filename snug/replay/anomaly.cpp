#include "snug/replay/anomaly.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "snug/record/recording.h"

namespace snug::replay {

std::optional<std::string> first_non_finite(const Forward& forward) {
  std::optional<std::string> found;
  std::int64_t position = 0;
  const auto tape = std::make_shared<record::Tape>(record::KeepSaved{});
  tape->set_watch([&](const std::string& name, const at::Tensor& output) {
    ++position;
    if (found || !(output.is_floating_point() || output.is_complex())) return;
    // What `empty` returns is no result yet.
    if (name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0) return;
    if (at::isfinite(output).all().item<bool>()) return;
    found = fmt::format("{} (operator {} of the step, output of shape [{}])", name, position,
                        fmt::join(output.sizes(), ", "));
  });
  {
    const at::NoGradGuard no_grad;
    const record::Recording recording(tape);
    forward();
  }
  tape->set_watch(nullptr);
  return found;
}

}  // namespace snug::replay
