#include "snug/memory/high_water.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {

struct Share {
  std::uint64_t window = 0;
  Bytes live = 0, peak = 0;
};

// Nothing to destroy: a thread frees tensors to its very end.
thread_local std::array<Share, HighWater::kMost> t_shares;

std::array<std::atomic<bool>, HighWater::kMost> g_taken;

// Each window of any object has a number of its own, so that a share tells whether it is of this one.
std::uint64_t next_window() {
  static std::atomic<std::uint64_t> latest{0};
  return ++latest;
}

std::size_t take_slot() {
  for (std::size_t slot = 0; slot < g_taken.size(); ++slot) {
    if (!g_taken[slot].exchange(true)) return slot;
  }
  throw Error(fmt::format("memory: no more than {} meters can measure at once", HighWater::kMost));
}

}  // namespace

HighWater::HighWater(Bytes level)
    : slot_(take_slot()), window_(next_window()), start_(level), level_(level), highest_(level) {}

HighWater::~HighWater() { g_taken[slot_] = false; }

void HighWater::change(Bytes bytes) {
  Share& share = t_shares[slot_];
  if (share.window != window_) share = {window_, 0, 0};
  share.live += bytes;
  level_ += bytes;
  highest_ = std::max(highest_, level_);
  if (share.live <= share.peak) return;
  peaks_ += share.live - share.peak;
  share.peak = share.live;
}

Meter::Peak HighWater::take(Bytes level) {
  window_ = next_window();
  level_ = level;
  return {.allocated = std::exchange(highest_, level),
          .all_at_once = std::exchange(start_, level) + std::exchange(peaks_, 0)};
}

}  // namespace snug::memory
