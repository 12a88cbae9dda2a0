#include "snug/parallel/buckets.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <tuple>

namespace snug::parallel {

std::vector<Bucket> buckets_of(const std::vector<at::Tensor>& parameters, Bytes most,
                               const std::set<std::size_t>& apart) {
  struct Open {
    std::size_t bucket;
    Bytes bytes;
  };
  std::vector<Bucket> buckets;
  std::map<std::tuple<at::ScalarType, std::string, bool>, Open> open;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& parameter = parameters[i];
    const auto bytes = static_cast<Bytes>(parameter.nbytes());
    const auto [kind, fresh] =
        open.try_emplace({parameter.scalar_type(), parameter.device().str(), apart.contains(i)}, Open{0, 0});
    Open& last = kind->second;
    if (fresh || last.bytes + bytes > most) {
      last = {buckets.size(), 0};
      buckets.emplace_back();
    }
    buckets[last.bucket].push_back(i);
    last.bytes += bytes;
  }
  // None waits for one that is whole later.
  std::ranges::stable_sort(buckets, std::greater(), [](const Bucket& bucket) { return bucket.back(); });
  return buckets;
}

}  // namespace snug::parallel
