#include "snug/plan/search/layout.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "snug/base/range_heap.h"

namespace snug::plan {
namespace {

using Order = std::vector<std::size_t>;

enum class Fit : std::uint8_t { Lowest, SmallestGap };

constexpr std::int64_t kComparisons = 400'000'000;  // about a second
constexpr int kRounds = 1'000;                      // of changes to the best order

/// Places blocks one after the other.
class Placing {
 public:
  Placing(std::span<const TimedBlock> blocks, std::span<const Occupied> occupied) : blocks_(blocks) {
    for (const auto& [offset, bytes] : occupied) occupied_.push_back({offset, {bytes, 0, kForever}});
    std::ranges::sort(occupied_, {}, &Placed::offset);
  }

  Layout operator()(const Order& order, Fit fit) {
    placed_ = occupied_;
    Layout layout{std::vector<Bytes>(blocks_.size()), 0};
    for (const std::size_t block : order) {
      const Placed placed{place(blocks_[block], fit), blocks_[block]};
      layout.offsets[block] = placed.offset;
      layout.bytes = std::max(layout.bytes, placed.offset + placed.block.bytes);
      placed_.insert(std::ranges::upper_bound(placed_, placed.offset, {}, &Placed::offset), placed);
    }
    return layout;
  }

 private:
  static constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();
  struct Placed {
    Bytes offset;
    TimedBlock block;
  };

  [[nodiscard]] Bytes place(const TimedBlock& block, Fit fit) const {
    Bytes top = 0;  // of what lies below and is there at the same time
    Bytes best = -1, smallest = std::numeric_limits<Bytes>::max();
    for (const auto& [offset, other] : placed_) {
      if (other.end <= block.begin || other.begin >= block.end) continue;
      const Bytes gap = offset - top;
      if (gap >= block.bytes && gap < smallest) {
        if (fit == Fit::Lowest) return top;
        best = top;
        smallest = gap;
      }
      top = std::max(top, offset + other.bytes);
    }
    return best >= 0 ? best : top;
  }

  std::span<const TimedBlock> blocks_;
  std::vector<Placed> occupied_, placed_;  // by offset
};

/// The largest first, by what is asked for.
template <class Of>
Order by(std::span<const TimedBlock> blocks, const Of& of) {
  Order order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t block) { return of(blocks[block]); });
  return order;
}

/// Those that reach to the top come first.
Order with_highest_first(const Order& order, std::span<const TimedBlock> blocks, const Layout& layout) {
  Order changed = order;
  const auto reaches_top = [&](std::size_t block) {
    return layout.offsets[block] + blocks[block].bytes == layout.bytes;
  };
  std::stable_partition(changed.begin(), changed.end(), reaches_top);  // not std::ranges': see change.cpp
  return changed;
}

/// Comparisons that place blocks in one order.
std::int64_t cost_of_order(std::size_t blocks) {
  const auto count = static_cast<std::int64_t>(blocks);
  return count * count / 2 + count;
}

/// As an allocator with best fit would, moment by moment.
Layout in_order_of_time(std::span<const TimedBlock> blocks, std::span<const Occupied> occupied) {
  std::vector<std::tuple<std::int64_t, bool, std::size_t>> changes;  // what ends at a moment before what begins
  Bytes enough = 0;
  for (const auto& [offset, bytes] : occupied) enough = std::max(enough, offset + bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    enough += blocks[i].bytes;
    if (blocks[i].begin >= blocks[i].end || blocks[i].bytes <= 0) continue;
    changes.emplace_back(blocks[i].begin, true, i);
    changes.emplace_back(blocks[i].end, false, i);
  }
  std::ranges::sort(changes);
  RangeHeap free;
  free.give(0, enough);
  for (const auto& [offset, bytes] : occupied) free.take_at(offset, bytes);
  Layout layout{std::vector<Bytes>(blocks.size()), 0};
  for (const auto& [moment, begins, block] : changes) {
    const Bytes bytes = blocks[block].bytes;
    Bytes& offset = layout.offsets[block];
    if (!begins) {
      free.give(offset, bytes);
      continue;
    }
    offset = *free.take(bytes);
    layout.bytes = std::max(layout.bytes, offset + bytes);
  }
  return layout;
}

}  // namespace

Bytes highest(std::span<const TimedBlock> blocks) {
  std::vector<std::pair<std::int64_t, Bytes>> changes;  // what goes at a moment before what comes
  for (const TimedBlock& block : blocks) {
    if (block.begin >= block.end) continue;
    changes.emplace_back(block.begin, block.bytes);
    changes.emplace_back(block.end, -block.bytes);
  }
  std::ranges::sort(changes);
  Bytes now = 0, most = 0;
  for (const auto& [moment, bytes] : changes) most = std::max(most, now += bytes);
  return most;
}

Layout lay_out(std::span<const TimedBlock> blocks, std::span<const Occupied> occupied) {
  std::int64_t left = kComparisons;
  if (cost_of_order(blocks.size()) > left) return in_order_of_time(blocks, occupied);
  const Bytes least = highest(blocks);
  Placing place(blocks, occupied);
  Layout best;
  Order of_best;
  Fit fit_of_best = Fit::Lowest;
  const auto consider = [&](const Order& order, Fit fit) {
    Layout layout = place(order, fit);
    left -= cost_of_order(blocks.size());
    if (!of_best.empty() && layout.bytes >= best.bytes) return;
    best = std::move(layout);
    of_best = order;
    fit_of_best = fit;
  };
  const auto length = [](const TimedBlock& block) { return static_cast<double>(block.end - block.begin); };
  const std::vector<Order> orders = {
      by(blocks, [](const TimedBlock& block) { return block.bytes; }),
      by(blocks, length),
      by(blocks, [&](const TimedBlock& block) { return static_cast<double>(block.bytes) * length(block); }),
      by(blocks, [](const TimedBlock& block) { return -block.begin; }),
  };
  for (const Order& order : orders) {
    for (const Fit fit : {Fit::Lowest, Fit::SmallestGap}) {
      if (of_best.empty() || (best.bytes > least && left > 0)) consider(order, fit);
    }
  }
  Order order = of_best;
  Layout latest = best;
  for (int round = 0; round < kRounds && best.bytes > least && left > 0; ++round) {
    Order changed = with_highest_first(order, blocks, latest);
    if (changed == order) break;
    order = std::move(changed);
    latest = place(order, fit_of_best);
    left -= cost_of_order(blocks.size());
    if (latest.bytes < best.bytes) best = latest;
  }
  return best;
}

}  // namespace snug::plan
