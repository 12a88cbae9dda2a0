#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <set>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::parallel {

/// Parameters whose gradients are handed in together, in one collective.
using Bucket = std::vector<std::size_t>;

/// Divides parameters into buckets of one type and device and at most `most` bytes, or one parameter that is larger; in
/// the order in which they are expected to be whole: gradients come last parameter first. `apart`: those, by number,
/// that are not in a bucket with others.
std::vector<Bucket> buckets_of(const std::vector<at::Tensor>& parameters, Bytes most,
                               const std::set<std::size_t>& apart = {});

}  // namespace snug::parallel
