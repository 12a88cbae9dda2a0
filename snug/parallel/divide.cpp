#include "snug/parallel/divide.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "snug/memory/device_clock.h"

namespace snug::parallel {
namespace {

constexpr int kTries = 5;

template <class Run>
double least_seconds(ProcessGroup& group, c10::Device device, const Run& run) {
  double least = 1e9;
  for (int i = 0; i < kTries; ++i) {
    group.run(Barrier{});
    const double began = memory::seconds_when_done(device);
    run();
    least = std::min(least, memory::seconds_when_done(device) - began);
  }
  return least;
}

}  // namespace

std::vector<DividedParameter> divide(const std::vector<at::Tensor>& parameters, World& world,
                                     const std::shared_ptr<ProcessGroup>& group, Bytes at_least, const GiveRoom& give,
                                     const StreamShard& stream) {
  std::vector<DividedParameter> all;
  const auto exchange = std::make_shared<ShardExchange>(world, group);
  std::unordered_set<const void*> once;
  for (const at::Tensor& parameter : parameters) {
    if (static_cast<Bytes>(parameter.nbytes()) < at_least || !once.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    auto room = std::make_unique<ShardedRoom>(exchange, parameter, static_cast<std::int64_t>(all.size()));
    all.push_back({parameter, room->shard()});
    give(parameter, std::move(room));
    if (stream) stream(all.back().shard);
  }
  exchange->meet();
  return all;
}

plan::MoveCost measured_gather_cost(World& world, const std::shared_ptr<ProcessGroup>& among, const StreamShard& stream,
                                    c10::Device device) {
  constexpr std::int64_t kSmall = 64, kLarge = 1 << 20, kSide = 192;
  ProcessGroup& group = *world.all();
  const auto exchange = std::make_shared<ShardExchange>(world, among);
  const at::TensorOptions on(device);
  const ShardedRoom small(exchange, at::empty({kSmall * among->size()}, on), 0),
      large(exchange, at::empty({kLarge}, on), 1);
  if (stream) stream(large.shard());
  exchange->meet();
  const at::Tensor there = at::empty({large.bytes()}, on.dtype(at::kByte)),
                   little = at::empty({small.bytes()}, on.dtype(at::kByte));
  const at::Tensor matrix = at::ones({kSide, kSide}, on);
  const auto compute = [&] {
    for (int i = 0; i < 4; ++i) (void)at::mm(matrix, matrix);
  };
  std::array<double, 4> seconds{};
  seconds[0] = least_seconds(group, device, [&] { small.read_now(little); });
  seconds[1] = least_seconds(group, device, [&] { large.read_now(there); });
  seconds[2] = least_seconds(group, device, compute);
  seconds[3] = least_seconds(group, device, [&] {
    const memory::StreamMark arrives = large.read(there, {});
    compute();
    arrives.wait();
  });
  group.run(AllReduce{at::from_blob(seconds.data(), {std::ssize(seconds)}, at::kDouble), Reduce::Max});
  const auto [of_call, of_large, of_compute, of_both] = seconds;
  const auto bytes = static_cast<double>(large.bytes());
  const double per_byte = std::max(of_large - of_call, 0.0) / bytes;
  // What is left of a gather's time where something is computed beside it.
  const double own = std::clamp((of_both - of_compute) / bytes, 0.0, per_byte);
  return {.out_seconds_per_byte = 0,
          .in_seconds_per_byte = per_byte,
          .seconds_per_copy = of_call,
          .own_out_seconds_per_byte = 0,
          .own_in_seconds_per_byte = own,
          .overlaps = own < per_byte,
          .budget = {},
          .in_slabs = false};
}

}  // namespace snug::parallel
