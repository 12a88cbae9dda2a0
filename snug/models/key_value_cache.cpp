#include "snug/models/key_value_cache.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>

#include "snug/base/errors.h"

namespace snug::models {

void append(KeyValueCache::Layer& layer, std::int64_t seen, at::Tensor& keys, at::Tensor& values) {
  const std::int64_t length = seen + keys.size(2);
  const auto add = [&](at::Tensor& all, at::Tensor& fresh) {
    const bool fits = all.defined() && all.size(0) == fresh.size(0) && all.size(1) == fresh.size(1) &&
                      all.size(3) == fresh.size(3) && all.scalar_type() == fresh.scalar_type();
    if (seen > 0 && !fits) {
      throw UsageError(fmt::format("key-value cache: it was filled with batches of {} and is used with one of {}",
                                   all.size(0), fresh.size(0)));
    }
    if (!fits || all.size(2) < length) {
      auto sizes = fresh.sizes().vec();
      sizes[2] = fits ? std::max(length, 2 * all.size(2)) : length;
      const at::Tensor larger = at::empty(sizes, fresh.options());
      if (seen > 0) larger.narrow(2, 0, seen).copy_(all.narrow(2, 0, seen));
      all = larger;
    }
    all.narrow(2, seen, fresh.size(2)).copy_(fresh);
    fresh = all.narrow(2, 0, length);
  };
  add(layer.keys, keys);
  add(layer.values, values);
}

}  // namespace snug::models
