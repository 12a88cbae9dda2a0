#pragma once

#include <ATen/core/Tensor.h>

#include "snug/snug.h"

namespace snug::testing {

inline const CheckpointOptions kRerun{.mode = Rerun{}};
inline const CheckpointOptions kWithoutRandomState{.mode = Rerun{.preserve_rng_state = false}};  // it takes 5 KiB

inline CheckpointOptions rerun(Rerun options) { return {.mode = options}; }

/// A function that counts its calls and the kernels that it runs to the end.
struct Counted {
  int calls = 0, sines = 0, cosines = 0;
  at::Tensor operator()(const at::Tensor& x) {
    ++calls;
    const at::Tensor sine = x.sin();
    ++sines;
    const at::Tensor cosine = sine.cos();
    ++cosines;
    return cosine.clone();
  }
};

}  // namespace snug::testing
