// Windows of streamed tensors beside collectives that plans have all processes do again.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <memory>
#include <vector>

#include "snug/parallel/group_agreement.h"
#include "snug/parallel/process_group.h"
#include "snug/plan/does_not_fit.h"
#include "snug/replay/agreed_recording.h"
#include "snug/replay/agreement.h"
#include "snug/replay/fit.h"
#include "snug/replay/window_choice.h"
#include "tests/parallel/models_in_parts.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using testing::in_processes;
using testing::kEven;
using testing::Parts;
using testing::tokens_of;

/// Each has measured other copies, and would choose another window: then plans had other room, and were not the same.
TEST(CommonWindow, IsTheLargestThatOneWouldChoose) {
  in_processes(2, [](World& world) {
    memory::DeviceMemory& memory = testing::cpu();
    const int rank = world.all()->rank();
    const auto group = world.group({0, 1});  // beside that of all, in which they agree
    Parts parts(group, testing::llama(kEven), models::Between::Whole);
    auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB, .min_bytes = 1_KiB});
    for (const at::Tensor& p : parts.model->parameters()) p.set_requires_grad(p.numel() < 1000);  // the rest is frozen
    streamed->add(parts.model->parameters());
    plan::MoveCost cost;
    cost.in_seconds_per_byte = rank == 0 ? 0.0 : 1e-3;
    streamed->set_cost(cost);
    const auto agreement = agreement_of(world.all());
    auto recorded = replay::record_micro_batches(1, 1_GiB, [&] { return testing::loss_of(*parts.model, tokens_of(0)); },
                                                 memory, {.agreement = agreement, .streamed = streamed});
    ASSERT_TRUE(replay::agree_on(recorded, *agreement));
    std::vector<replay::PlannedStep> alone = replay::planned(std::move(recorded), "optimal", *agreement),
                                     together = alone;
    const plan::Budget ample = plan::Budget::for_limit(1_GiB);
    const auto of_all = [&](Bytes bytes) {
      const at::Tensor all = torch::empty({2}, at::kLong);
      world.all()->run(AllGather{all, torch::full({1}, bytes, at::kLong)});
      return std::array{all[0].item<std::int64_t>(), all[1].item<std::int64_t>()};
    };
    const auto own = of_all(replay::open_best_window(streamed.get(), alone, ample, memory).window.bytes);
    EXPECT_LT(own[0], own[1]);
    const auto common =
        of_all(replay::open_best_window(streamed.get(), together, ample, memory, 1, *agreement).window.bytes);
    EXPECT_EQ(common[0], own[1]);
    EXPECT_EQ(common[1], own[1]);
    const auto counted = of_all(together.front().step.graph.static_bytes);
    EXPECT_EQ(counted[0], counted[1]) << "plans have as much room";
    // Where one of them has no room for any, the others do not wait for its window.
    const auto refused = [&] {
      return replay::or_tell(*agreement, [&] {
        return replay::open_best_window(streamed.get(), together, plan::Budget::for_limit(rank == 0 ? 1_GiB : 1_MiB),
                                        memory, 1, *agreement);
      });
    };
    if (rank == 0) {
      EXPECT_THROW((void)refused(), replay::GroupEnded);
    } else {
      EXPECT_THROW((void)refused(), DoesNotFit);
    }
    streamed->bring_back();
  });
}

}  // namespace
}  // namespace snug::parallel
