#include "snug/memory/parallel_for.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>

namespace snug::memory {

void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  c10::function_ref<void(std::int64_t, std::int64_t)> work) {
  grain = std::max<std::int64_t>(grain, 1);
  const std::int64_t parts = (end - begin + grain - 1) / grain;
  if (parts <= 0) return;
  if (parts == 1 || at::get_num_threads() == 1 || at::in_parallel_region()) return work(begin, end);
  // LibTorch's own loop over tensors, over a byte for each part: where one is says which part it is, and nobody looks
  // at it.
  static char nowhere = 0;
  const at::AutoDispatchBelowADInplaceOrView below;
  at::Tensor places = at::from_blob(&nowhere, {parts}, at::TensorOptions(at::kByte));
  at::TensorIterator iterator = at::TensorIteratorConfig()
                                    .set_check_mem_overlap(false)
                                    .check_all_same_dtype(false)
                                    .resize_outputs(false)
                                    .add_output(places)
                                    .build();
  iterator.for_each(
      [&](char** data, const std::int64_t* /*strides*/, std::int64_t size, std::int64_t rows) {
        const auto first = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data[0]) -
                                                     reinterpret_cast<std::uintptr_t>(&nowhere));
        const std::int64_t last = first + size * rows;
        work(begin + first * grain, std::min(begin + last * grain, end));
      },
      /*grain_size=*/1);
}

}  // namespace snug::memory
