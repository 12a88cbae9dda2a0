#include "snug/memory/memory_sample.h"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"

namespace snug::memory {

ResidentShares shares_of(Bytes resident, Bytes allocated, Bytes mapped) {
  return {.tensors = allocated,
          .cached = mapped - allocated,
          .untouched = std::max<Bytes>(mapped - resident, 0),
          .others = std::max<Bytes>(resident - mapped, 0)};
}

MemorySample sample(const DeviceMemory& memory) {
  const Stats stats = memory.stats();
  const ProcessMemory process = process_memory();
  MemorySample sample{.seconds = monotonic_seconds(),
                      .allocated = stats.allocated,
                      .mapped = stats.mapped,
                      .limit = stats.limit,
                      .by_tag = stats.by_tag,
                      .resident = process.resident,
                      .anonymous = process.anonymous,
                      .shares = {},
                      .device = {}};
  const Stats host = memory.device().is_cpu() ? stats : device_memory(c10::kCPU).stats();
  sample.shares = shares_of(sample.resident, host.allocated, host.mapped);
  sample.device = memory.capacity();
  return sample;
}

nlohmann::ordered_json to_json(const ByTag& by_tag) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < kTags; ++i) json[std::string(kTagNames[i])] = by_tag[i];
  return json;
}

nlohmann::ordered_json to_json(const MemorySample& s) {
  return {{"allocated_bytes", s.allocated},
          {"by_tag", to_json(s.by_tag)},
          {"mapped_bytes", s.mapped},
          {"limit_bytes", s.limit ? nlohmann::ordered_json(*s.limit) : nlohmann::ordered_json()},
          {"resident_bytes", s.resident},
          {"anonymous_bytes", s.anonymous},
          {"resident",
           {{"tensors", s.shares.tensors},
            {"cached", s.shares.cached},
            {"untouched", s.shares.untouched},
            {"others", s.shares.others}}},
          {"device_total_bytes", s.device.total},
          {"device_free_bytes", s.device.available}};
}

}  // namespace snug::memory
