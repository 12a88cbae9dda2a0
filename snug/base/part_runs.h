#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>

namespace snug {

/// Which elements of a whole a part has, in the order of both: runs of equal length at equal distances, as some of the
/// rows of a matrix are (one run), or some of its columns (one in each row). Without more, one run without an end.
struct PartRuns {
  static constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();

  std::int64_t first = 0;          ///< element of the whole that the first run begins with
  std::int64_t length = kEndless;  ///< elements of each run, more than 0
  std::int64_t stride = kEndless;  ///< from where a run begins to where the next one does; at least the length

  /// The element of the whole that element `i` of the part is.
  [[nodiscard]] std::int64_t at(std::int64_t i) const { return first + i / length * stride + i % length; }
  /// How many elements of the part come before an element of the whole.
  [[nodiscard]] std::int64_t before(std::int64_t element) const {
    if (element <= first) return 0;
    const std::int64_t from_first = element - first;
    return from_first / stride * length + std::min(from_first % stride, length);
  }
  /// Calls with elements of the part from `i` to before `end`, in pieces of which each is one in the whole:
  /// call(element of the part, element of the whole, how many).
  template <class Call>
  void each_run(std::int64_t i, std::int64_t end, const Call& call) const {
    while (i < end) {
      const std::int64_t count = std::min(length - i % length, end - i);
      call(i, at(i), count);
      i += count;
    }
  }

  friend bool operator==(const PartRuns&, const PartRuns&) = default;
  friend bool operator<(const PartRuns& a, const PartRuns& b) {
    return std::tie(a.first, a.length, a.stride) < std::tie(b.first, b.length, b.stride);
  }
};

}  // namespace snug
