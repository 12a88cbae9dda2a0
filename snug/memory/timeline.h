#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::memory {

/// What memory was over time, of bounded length however long that is: when there are more points than `most`, every
/// other one goes, and of those to come as many are left out.
class Timeline {
 public:
  explicit Timeline(std::size_t most) : most_(most) {}

  void add(double seconds, Bytes bytes) {
    if (seen_++ % each_ != 0) return;
    points_.emplace_back(seconds, bytes);
    if (points_.size() <= most_) return;
    each_ *= 2;
    for (std::size_t i = 0; 2 * i < points_.size(); ++i) points_[i] = points_[2 * i];
    points_.resize((points_.size() + 1) / 2);
  }

  [[nodiscard]] const std::vector<std::pair<double, Bytes>>& points() const { return points_; }

 private:
  std::size_t most_;
  std::int64_t seen_ = 0, each_ = 1;
  std::vector<std::pair<double, Bytes>> points_;
};

}  // namespace snug::memory
