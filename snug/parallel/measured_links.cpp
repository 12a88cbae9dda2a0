#include "snug/parallel/measured_links.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "snug/base/clock.h"
#include "snug/base/errors.h"

namespace snug::parallel {
namespace {

constexpr int kSide = 256, kParts = 8;  // of some milliseconds
constexpr int kRounds = 40, kOutliers = 4;

double largest_of(World& world, double mine) {
  world.all()->run(AllReduce{at::from_blob(&mine, {1}, at::kDouble), Reduce::Max});
  return mine;
}

/// What processes do before they meet.
enum class Before : std::uint8_t { Wait, Compute };

/// Of a collective of messages in pairs, as all processes of the world do it at once, each in its group: of the slowest
/// of all, in order.
std::vector<double> seconds_in(World& world, ProcessGroup& group, std::int64_t bytes_for_each, Before before) {
  const at::Tensor sent = at::zeros({group.size() * bytes_for_each}, at::kByte), received = at::zeros_like(sent);
  const at::Tensor matrix = at::ones({kSide, kSide});
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) {
    world.all()->run(Barrier{});
    // Those that compute arrive one after the other, and their links have fallen asleep.
    for (int part = 0; before == Before::Compute && part < kParts; ++part) (void)at::mm(matrix, matrix);
    const double began = monotonic_seconds();
    group.run(AllToAll{received, sent});
    seconds.push_back(largest_of(world, monotonic_seconds() - began));
  }
  std::ranges::sort(seconds);
  return seconds;
}

Link measured(World& world, ProcessGroup& group) {
  constexpr std::int64_t kSmall = 64, kLarge = 4 << 20;
  const auto undisturbed = [&](std::int64_t bytes) {
    return seconds_in(world, group, bytes, Before::Wait).at(kRounds / 4);
  };
  const double of_small = undisturbed(kSmall), of_large = undisturbed(kLarge), others = group.size() - 1;
  // All of these add up in a step.
  const std::vector<double> each = seconds_in(world, group, kSmall, Before::Compute);
  const double in_step = std::accumulate(each.begin(), each.end() - kOutliers, 0.0) / (kRounds - kOutliers);
  return {.bytes_per_second = others * static_cast<double>(kLarge - kSmall) / std::max(of_large - of_small, 1e-9),
          .seconds_per_message = in_step / others};
}

}  // namespace

Links measured_links(World& world) {
  const Launched& launched = world.launched();
  // Each may know of those alone that have a smaller rank on its machine.
  const int per_machine = static_cast<int>(largest_of(world, launched.local_size));
  const bool is_elsewhere = launched.rank % per_machine != launched.local_rank || launched.size % per_machine != 0;
  if (launched.size == 1 || largest_of(world, is_elsewhere ? 1 : 0) > 0) {
    throw UsageError(
        fmt::format("parallel: links of {} processes are measured where each machine has as many of them, with ranks "
                    "that follow each other, and there are two at least",
                    launched.size));
  }
  const int first = launched.rank - launched.local_rank;
  std::vector<int> here(static_cast<std::size_t>(per_machine)), across;
  std::iota(here.begin(), here.end(), first);
  for (int rank = launched.local_rank; rank < launched.size; rank += per_machine) across.push_back(rank);
  Links links{.within = {}, .between = {}, .per_machine = per_machine};
  if (per_machine > 1) links.within = measured(world, *world.group(here));
  links.between = across.size() > 1 ? measured(world, *world.group(across)) : links.within;
  if (per_machine == 1) links.within = links.between;
  return links;
}

}  // namespace snug::parallel
