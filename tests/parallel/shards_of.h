#pragma once

#include <torch/torch.h>

#include <vector>

#include "snug/parallel/data_parallel.h"

namespace snug::testing {

/// What each shard should have of whole tensors.
inline std::vector<at::Tensor> in_shards(const std::vector<at::Tensor>& parameters,
                                         const std::vector<at::Tensor>& whole,
                                         const std::vector<parallel::Shard>& shards) {
  std::vector<at::Tensor> parts;
  for (const parallel::Shard& shard : shards) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].is_same(shard.of)) continue;
      parts.push_back(whole[i].defined() ? whole[i].view(-1).narrow(0, shard.first, shard.tensor.numel()) : whole[i]);
    }
  }
  return parts;
}

inline std::vector<at::Tensor> take_shards(const std::vector<parallel::Shard>& shards) {
  std::vector<at::Tensor> gradients;
  for (at::Tensor shard : [&] {
         std::vector<at::Tensor> all;
         for (const parallel::Shard& s : shards) all.push_back(s.tensor);
         return all;
       }()) {
    gradients.push_back(shard.grad());
    shard.mutable_grad() = at::Tensor();
  }
  return gradients;
}

}  // namespace snug::testing
