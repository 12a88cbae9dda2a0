#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace snug::testing {

/// A c10d::Reducer of dense parameters with those buckets. LibTorch 2.12 and newer take a list of bucket sizes too.
template <class R = c10d::Reducer>
std::unique_ptr<R> reducer_of(const std::vector<at::Tensor>& parameters,
                              const std::vector<std::vector<std::size_t>>& buckets,
                              c10::intrusive_ptr<c10d::ProcessGroup> group, bool find_unused, bool views) {
  const std::vector<bool> dense(parameters.size(), false);
  const std::unordered_map<std::size_t, std::string> names;
  constexpr std::int64_t kBytes = 1 << 20;  // of buckets that it makes anew, and of the first
  using Sizes = std::vector<std::int64_t>;
  if constexpr (std::is_constructible_v<R, decltype(parameters), decltype(buckets), decltype(group), decltype(dense),
                                        std::int64_t, bool, bool, decltype(names), std::int64_t, bool, bool, Sizes>) {
    return std::make_unique<R>(parameters, buckets, std::move(group), dense, kBytes, find_unused, views, names, kBytes,
                               false, false, Sizes{});
  } else {
    return std::make_unique<R>(parameters, buckets, std::move(group), dense, kBytes, find_unused, views, names, kBytes,
                               false, false);
  }
}

}  // namespace snug::testing
