#include "snug/replay/moves.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "snug/memory/offloaded.h"
#include "snug/record/recording_key.h"
#include "snug/record/step_clock.h"
#include "snug/record/stream_order.h"

namespace snug::replay {
namespace {

constexpr Bytes kLarge = 8_MiB, kSmall = 64_KiB;
constexpr std::size_t kBeyondCaches = 96_MiB;
constexpr Bytes kOnALink = 2_MiB;
constexpr std::size_t kInARow = 4;
constexpr int kTries = 3;
constexpr double kSlow = 1e-9;  // seconds for a byte

struct Seconds {
  double out = std::numeric_limits<double>::infinity(), in = std::numeric_limits<double>::infinity();
};

/// The shortest of a few times that it takes to copy so many blocks each way, by block and by the device's clock. The
/// first takes the host's memory from the system.
Seconds copying(Bytes bytes, std::size_t blocks, c10::Device device) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);
  std::vector<at::Tensor> tensors;
  std::vector<memory::Offloaded::Arriving> back;
  memory::Tiers tiers;  // without a budget; before those go, which copies may still read and write, it waits for all
  for (std::size_t i = 0; i < blocks; ++i) {
    tensors.push_back(at::empty({bytes}, at::TensorOptions(at::kByte).device(device)));
    tensors.back().fill_(1);
  }
  Seconds least;
  for (int i = 0; i <= kTries; ++i) {
    std::vector<memory::Offloaded> contents;
    back.clear();
    record::StepClock clock(device);
    const auto began = clock.now();
    for (const at::Tensor& t : tensors)
      contents.push_back(memory::Offloaded::sent(t.storage(), bytes, tiers, memory::Tier::Host));
    record::StreamOrder::let_wait(device, contents.back().left());
    const auto there = clock.now();
    for (const memory::Offloaded& c : contents) {
      if (device.is_cpu()) back.clear();  // which takes as much memory as one
      back.push_back(c.fetch());
    }
    record::StreamOrder::let_wait(device, back.back().there);
    const auto over = clock.now();
    clock.settle();
    if (i > 0)
      least = {std::min(least.out, clock.seconds(began, there)), std::min(least.in, clock.seconds(there, over))};
  }
  return {least.out / static_cast<double>(blocks), least.in / static_cast<double>(blocks)};
}

/// Throws where there is no room for a block, there or on the host.
plan::MoveCost measured(memory::DeviceMemory& memory) {
  // What a step moves is in no cache of the processor's; elsewhere one copy follows the other.
  const c10::Device device = memory.device();
  const Seconds small = copying(kSmall, device.is_cpu() ? 1 : kInARow, device);
  const Bytes block = device.is_cpu() ? kLarge : kOnALink;
  const Seconds large = copying(block, device.is_cpu() ? kBeyondCaches / kLarge : kInARow, device);
  const auto per_byte = [&](double of_small, double of_large) {
    return std::max(of_large - of_small, of_large / 2) / static_cast<double>(block - kSmall);
  };
  plan::MoveCost cost{.out_seconds_per_byte = per_byte(small.out, large.out),
                      .in_seconds_per_byte = per_byte(small.in, large.in),
                      .seconds_per_copy = 0,
                      .overlaps = !device.is_cpu(),
                      .budget = {}};
  const auto call = [](double seconds, double per_byte_of_it) {
    return seconds - per_byte_of_it * static_cast<double>(kSmall);
  };
  cost.seconds_per_copy =
      std::max({call(small.out, cost.out_seconds_per_byte), call(small.in, cost.in_seconds_per_byte), 0.0});
  return cost;
}

}  // namespace

plan::MoveCost measured_move_cost(memory::DeviceMemory& memory) {
  static std::mutex mutex;
  static std::map<c10::DeviceType, plan::MoveCost> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(memory.device().type());
  if (found != known.end()) return found->second;
  try {
    return known[memory.device().type()] = measured(memory);
  } catch (const std::exception&) {
    known.erase(memory.device().type());
    return {.out_seconds_per_byte = kSlow, .in_seconds_per_byte = kSlow, .seconds_per_copy = 0, .budget = {}};
  }
}

void let_move(std::vector<RecordedStep>& kinds, memory::DeviceMemory& memory, const memory::Tiers& tiers) {
  if (!tiers.budgets().host) return;
  plan::MoveCost cost = measured_move_cost(memory);
  cost.budget = tiers.budgets().host;
  for (RecordedStep& kind : kinds) kind.graph.host = cost;
}

}  // namespace snug::replay
