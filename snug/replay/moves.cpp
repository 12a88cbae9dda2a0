#include "snug/replay/moves.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceType.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/offloaded.h"
#include "snug/record/step_clock.h"
#include "snug/record/stream_order.h"
#include "snug/record/unseen.h"

namespace snug::replay {
namespace {

constexpr Bytes kLarge = 8_MiB, kSmall = 64_KiB;
constexpr std::size_t kBeyondCaches = 96_MiB;
constexpr Bytes kOnALink = 2_MiB;
constexpr std::size_t kInARow = 4;
constexpr int kTries = 3;
constexpr double kSlow = 1e-9;  // seconds for a byte

/// Whether a step does nothing else while contents are copied.
bool waits(c10::Device device, memory::Tier tier) { return device.is_cpu() && tier == memory::Tier::Host; }

/// Whether the tier's memory comes in large pieces.
bool in_slabs(c10::Device device, memory::Tier tier) { return tier == memory::Tier::Host && !device.is_cpu(); }

struct Seconds {
  double out = std::numeric_limits<double>::infinity(), in = std::numeric_limits<double>::infinity();
};

Seconds least_of(const Seconds& a, const Seconds& b) { return {std::min(a.out, b.out), std::min(a.in, b.in)}; }
Seconds per(const Seconds& all, std::size_t count) {
  return {all.out / static_cast<double>(count), all.in / static_cast<double>(count)};
}

struct Copying {
  Seconds seconds;
  Seconds own;  // of a processor, of the threads that copy beside the step
};

Seconds of_threads(const memory::Links& links) { return {links.seconds_to_disk(), links.seconds_from_disk()}; }

/// What is copied to see how long that takes.
struct Blocks {
  Bytes bytes;  // of each
  std::size_t count;
};

/// The shortest of a few times that it takes to copy so many blocks each way, by block and by the device's clock. The
/// first takes the host's memory, or the disk's room, from the system.
Copying copying(const Blocks& of, c10::Device device, memory::Tier tier) {
  const auto [bytes, blocks] = of;
  const record::Unseen unseen;
  std::vector<at::Tensor> tensors;
  std::vector<memory::Offloaded::Arriving> back;
  memory::Tiers tiers;  // without a budget; before those go, which copies may still read and write, it waits for all
  for (std::size_t i = 0; i < blocks; ++i) {
    tensors.push_back(at::empty({bytes}, at::TensorOptions(at::kByte).device(device)));
    tensors.back().fill_(1);
  }
  Copying least;
  for (int i = 0; i <= kTries; ++i) {
    std::vector<memory::Offloaded> contents;
    back.clear();
    const Seconds before = of_threads(tiers.links());
    record::StepClock clock(device);
    const auto began = clock.now();
    for (const at::Tensor& t : tensors) contents.push_back(memory::Offloaded::sent(t.storage(), bytes, tiers, tier));
    for (const memory::Offloaded& c : contents) record::StreamOrder::let_wait(device, c.left());
    const auto there = clock.now();
    for (const memory::Offloaded& c : contents) {
      if (waits(device, tier)) back.clear();  // which takes as much memory as one
      back.push_back(c.fetch());
    }
    for (const memory::Offloaded::Arriving& b : back) record::StreamOrder::let_wait(device, b.there);
    const auto over = clock.now();
    clock.settle();
    const Seconds after = of_threads(tiers.links());
    if (i == 0) continue;
    least.seconds = least_of(least.seconds, {clock.seconds(began, there), clock.seconds(there, over)});
    least.own = least_of(least.own, {after.out - before.out, after.in - before.in});
  }
  return {per(least.seconds, blocks), per(least.own, blocks)};
}

constexpr Bytes kLeastRoom = 4 * kSmall;

/// As many, and as large, as there is room for, on both sides: blocks are there, and what comes back of them.
Blocks within(Bytes room, Blocks blocks) {
  const auto fit = [&] { return blocks.bytes * static_cast<Bytes>(2 * blocks.count) <= room; };
  while (!fit() && blocks.count > 1) --blocks.count;
  while (!fit() && blocks.bytes > 2 * kSmall) blocks.bytes /= 2;
  return blocks;
}

/// Throws where there is no room for a block, there or on the host.
plan::MoveCost measured(memory::DeviceMemory& memory, memory::Tier tier, Bytes room) {
  // What a step moves is in no cache of the processor's; elsewhere one copy follows the other.
  const c10::Device device = memory.device();
  const bool by_cache = device.is_cpu() && tier == memory::Tier::Host;
  const Seconds small = copying(within(room, {kSmall, by_cache ? 1 : kInARow}), device, tier).seconds;
  const Blocks blocks =
      within(room, {device.is_cpu() ? kLarge : kOnALink, by_cache ? kBeyondCaches / kLarge : kInARow});
  const auto [large, own] = copying(blocks, device, tier);
  const Bytes block = blocks.bytes;
  const auto per_byte = [&](double of_small, double of_large) {
    return std::max(of_large - of_small, of_large / 2) / static_cast<double>(block - kSmall);
  };
  plan::MoveCost cost{.out_seconds_per_byte = per_byte(small.out, large.out),
                      .in_seconds_per_byte = per_byte(small.in, large.in),
                      .overlaps = !waits(device, tier),
                      .budget = {},
                      .in_slabs = in_slabs(device, tier)};
  if (cost.overlaps && device.is_cpu()) {
    cost.own_out_seconds_per_byte = own.out / static_cast<double>(block);
    cost.own_in_seconds_per_byte = own.in / static_cast<double>(block);
  }
  const auto call = [](double seconds, double per_byte_of_it) {
    return seconds - per_byte_of_it * static_cast<double>(kSmall);
  };
  cost.seconds_per_copy =
      std::max({call(small.out, cost.out_seconds_per_byte), call(small.in, cost.in_seconds_per_byte), 0.0});
  return cost;
}

}  // namespace

plan::MoveCost measured_move_cost(memory::DeviceMemory& memory, memory::Tier tier, Bytes room) {
  static std::mutex mutex;
  static std::map<std::pair<c10::DeviceType, memory::Tier>, plan::MoveCost> known;
  const std::lock_guard lock(mutex);
  const std::pair key(memory.device().type(), tier);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const plan::MoveCost slow{.out_seconds_per_byte = kSlow,
                            .in_seconds_per_byte = kSlow,
                            .seconds_per_copy = 0,
                            .budget = {},
                            .in_slabs = in_slabs(memory.device(), tier)};
  if (room < kLeastRoom) return slow;
  try {
    return known[key] = measured(memory, tier, room);
  } catch (const std::exception&) {
    known.erase(key);
    return slow;
  }
}

Bytes room_within(std::optional<Bytes> limit, const memory::DeviceMemory& memory) {
  return limit ? *limit - memory.stats().allocated : std::numeric_limits<Bytes>::max();
}

void let_move(std::vector<RecordedStep>& kinds, memory::DeviceMemory& memory, memory::Tiers& tiers,
              std::optional<Bytes> limit) {
  std::optional<memory::HeldLimit> held;
  if (limit) held.emplace(memory, limit);
  const Bytes room = room_within(limit, memory);
  plan::Moves moves;
  const auto to = [&](memory::Tier tier, const std::optional<Bytes>& budget) {
    std::optional<plan::MoveCost> cost;
    // Of pieces that others have begun nobody knows here how much there is.
    const memory::TierStats there = tiers.stats(tier);
    const bool begun = there.taken > 0 && in_slabs(memory.device(), tier);
    const Bytes left = budget ? *budget - (begun ? there.held : there.taken) : 0;
    if (left > 0) cost = measured_move_cost(memory, tier, std::min(left, room));
    if (cost) cost->budget = left;
    return cost;
  };
  moves.host = to(memory::Tier::Host, tiers.budgets().host);
  if (tiers.budgets().disk) tiers.disk();  // which tells where there is none
  moves.disk = to(memory::Tier::Disk, tiers.budgets().disk);
  for (RecordedStep& kind : kinds) kind.graph.moves = moves;  // divided where they are planned
}

}  // namespace snug::replay
