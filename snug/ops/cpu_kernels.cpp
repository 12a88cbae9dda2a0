#include "snug/ops/cpu_kernels.h"

#include <ATen/Version.h>

#include <string>

namespace snug::ops {
namespace kernels::DEFAULT {
extern const Table kTable;
}
#ifdef SNUG_KERNELS_X86
namespace kernels::AVX2 {
extern const Table kTable;
}
namespace kernels::AVX512 {
extern const Table kTable;
}
#endif

const kernels::Table& cpu_kernels() {
  static const kernels::Table& table = []() -> const kernels::Table& {
#ifdef SNUG_KERNELS_X86
    const std::string set = at::get_cpu_capability();
    if (set == "AVX512") return kernels::AVX512::kTable;
    if (set == "AVX2") return kernels::AVX2::kTable;
#endif
    return kernels::DEFAULT::kTable;
  }();
  return table;
}

bool kernels_take(c10::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
    case at::kHalf:
      return true;
    default:
      return false;
  }
}

}  // namespace snug::ops
