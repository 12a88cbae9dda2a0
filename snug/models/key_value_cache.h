#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace snug::models {

/// What attention has seen of a text, for generation: keys and values of each layer.
struct KeyValueCache {
  struct Layer {
    at::Tensor keys, values;  ///< (batch, key heads, room, head width); undefined before the first token
  };
  std::vector<Layer> layers;
  std::int64_t length = 0;  ///< positions that are filled
};

/// Puts keys and values of new positions, (batch, key heads, positions, head width), behind the `seen` positions of a
/// layer, and makes them those of all positions: views of the cache, which later tokens write on. The cache has room
/// for more than it holds, and doubles it when that is used up. Under NoGradGuard: what is written into it would be
/// part of every later graph. Throws UsageError when the cache holds a batch of another size.
void append(KeyValueCache::Layer& layer, std::int64_t seen, at::Tensor& keys, at::Tensor& values);

}  // namespace snug::models
