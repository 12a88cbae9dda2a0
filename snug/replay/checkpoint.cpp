#include "snug/replay/checkpoint.h"

#include <fmt/format.h>

#include "snug/base/errors.h"

namespace snug::replay {

std::vector<std::pair<std::size_t, std::size_t>> sequential_segments(std::size_t functions, std::int64_t segments) {
  if (segments < 1 || static_cast<std::size_t>(segments) > functions) {
    throw UsageError(
        fmt::format("checkpoint_sequential: {} segments of {} layers; there must be at least one layer in each",
                    segments, functions));
  }
  const std::size_t count = static_cast<std::size_t>(segments);
  const std::size_t length = functions / count;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (std::size_t i = 0; i < count; ++i)
    ranges.emplace_back(i * length, i + 1 == count ? functions : (i + 1) * length);
  return ranges;
}

}  // namespace snug::replay
