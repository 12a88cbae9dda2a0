#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace snug::models {

/// f(x), of `rows` rows of x (..., width) at a time, as where a feed-forward part goes along a long sequence (Jacobs et
/// al. 2023; Arctic Long Sequence Training, Bekman et al. 2025): what f makes on its way, which may be several times as
/// wide as x, is there of so many rows, and a plan can make it again for each of them by itself in the backward pass. f
/// treats each row (rows, width) by itself and changes only the width. The same numbers but for rounding: gradients of
/// what all rows share are added up in another order, and products of matrices may be, where they have fewer rows. 0
/// rows: all at once.
at::Tensor in_parts(const at::Tensor& x, std::int64_t rows, const std::function<at::Tensor(const at::Tensor&)>& f);

}  // namespace snug::models
