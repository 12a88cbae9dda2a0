#pragma once

#include <ATen/core/Tensor.h>

namespace snug::ops {

/// at::rms_norm (Zhang and Sennrich 2019) over the last dimension, in one pass over x each way: LibTorch
/// puts it together of six operators on CPUs, which keep four tensors of x's size for the backward pass; here it is x
/// and a number per row. Bit for bit, but for the order in which gradients of x are added up where x has other uses:
/// LibTorch adds the two parts of this one's to them one by one. `weight` (width) or undefined; the result has x's
/// type. Differentiable any number of times.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon);

struct StreamAndNormalized {
  at::Tensor stream, normalized;
};

/// Of a residual stream: x + delta, or x where delta is undefined, and rms_norm() of that. What goes on with the stream
/// beside the normalized is to use what is returned, and to come behind it: then gradients are added up as those of the
/// operators in its place, and are bitwise the same, which those of x are not where rms_norm() is one of two uses of
/// it. The sum has the type of at::add's.
StreamAndNormalized rms_norm_of_stream(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                                       double epsilon);

}  // namespace snug::ops
