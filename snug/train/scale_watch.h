#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace snug::train {

/// Tells a loss scale that finds its place, which takes a few overflows, from one that keeps falling. Whether a run
/// goes on is decided here: PyTorch's loops skip steps for ever.
class ScaleWatch {
 public:
  /// A step was updated.
  void updated() noexcept;
  /// A step was not: `scale` as it is for the next one. Returns what is to be told, if anything. Throws Error after 40
  /// steps in a row, which no scale accounts for.
  std::optional<std::string> overflowed(std::int64_t step, double scale);

 private:
  std::int64_t in_a_row_ = 0;
  bool told_ = false;  // of this fall
};

}  // namespace snug::train
