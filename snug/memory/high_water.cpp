#include "snug/memory/high_water.h"

#include <utility>

namespace snug::memory {
namespace {

struct Share {
  std::uint64_t window = 0;
  Bytes live = 0, peak = 0;
};

thread_local Share t_share;

}  // namespace

void HighWater::change(Bytes bytes) {
  Share& share = t_share;
  if (share.window != window_) share = {window_, 0, 0};
  share.live += bytes;
  if (share.live <= share.peak) return;
  peaks_ += share.live - share.peak;
  share.peak = share.live;
}

Bytes HighWater::take(Bytes level) {
  ++window_;
  return std::exchange(start_, level) + std::exchange(peaks_, 0);
}

}  // namespace snug::memory
