#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/sharded_room.h"
#include "snug/plan/step/move_cost.h"

namespace snug::parallel {

/// Takes over a parameter's contents, which from then on are where the room has them: StreamedTensors::add_with_room().
using GiveRoom = std::function<void(const at::Tensor& parameter, std::unique_ptr<memory::ContentsRoom> room)>;

/// Has a shard's contents go elsewhere, as StreamedTensors::add() does.
using StreamShard = std::function<void(const at::Tensor& shard)>;

/// Divides the contents of parameters among the processes of a group, each parameter evenly, but for those of fewer
/// bytes than `at_least`, which stay whole in each process (ZeRO 3, Rajbhandari et al. 2020, arXiv:1910.02054). All
/// processes have the same parameters with the same contents, and call this at once. Returns those that are divided, in
/// their order, one that comes twice once. Parameters must be contiguous, and alone in their storages. All processes of
/// the world have groups that call this at once (hybrid shard), as of one machine each, or all are one. `stream`: what
/// becomes of each shard before others may ask for it (ZeRO-Infinity, arXiv 2104.07857); none: it stays in memory.
std::vector<DividedParameter> divide(const std::vector<at::Tensor>& parameters, World& world,
                                     const std::shared_ptr<ProcessGroup>& group, Bytes at_least, const GiveRoom& give,
                                     const StreamShard& stream = {});

/// What it takes to put contents together on such a device, by a few that all of the world do at once: the same in all.
plan::MoveCost measured_gather_cost(World& world, const std::shared_ptr<ProcessGroup>& group,
                                    const StreamShard& stream = {}, c10::Device device = c10::kCPU);

}  // namespace snug::parallel
