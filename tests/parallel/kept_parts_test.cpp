// What all processes have alike, of which each keeps a part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/parallel/group_agreement.h"
#include "snug/replay/agreed_recording.h"
#include "snug/replay/fit.h"
#include "snug/replay/planned_step.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/models_in_parts.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using models::Between;
using testing::in_processes;
using testing::kEven;
using testing::Parts;
using testing::same_bits;
using testing::tokens_of;

std::int64_t gathers_of(const ProcessGroup& group) { return group.count_of<AllGather>().calls; }

/// All but the first three of a size are neither sent nor looked at; gradients go through, and without any it is x.
TEST(KeptParts, AreGatheredThreeTimesOfEachSizeAndNeverElse) {
  in_processes(2, [](World& world) {
    const auto group = tensor_group(world.all());
    for (const std::int64_t rows : {4, 8}) {
      const std::int64_t before = gathers_of(*world.all());
      for (int i = 0; i < 5; ++i) {
        torch::manual_seed(rows + i);
        const at::Tensor x = torch::randn({rows, 6}).t().requires_grad_();
        const at::Tensor kept = ops::keep_in_parts(x, group);
        EXPECT_TRUE(same_bits(kept, x)) << rows << " " << i;
        EXPECT_EQ(kept.sizes(), x.sizes());
        EXPECT_NE(kept.data_ptr(), x.data_ptr());
        const at::Tensor gradient = torch::randn_like(x);
        EXPECT_TRUE(same_bits(torch::autograd::grad({kept}, {x}, {gradient})[0], gradient));
        EXPECT_EQ(gathers_of(*world.all()) - before, std::min(i + 1, 3)) << rows;
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(ops::keep_in_parts(x, group).is_same(x));
      }
    }
  });
}

TEST(KeptParts, OfWhatIsNotAlikeAreRefusedInAll) {
  in_processes(2, [](World& world) {
    const auto group = tensor_group(world.all());
    const auto said = [&](const at::Tensor& x) {
      try {
        (void)ops::keep_in_parts(x, group);
      } catch (const Error& error) {
        return std::string(error.what());
      }
      return std::string("nothing");
    };
    EXPECT_THAT(said(torch::full({2, 3}, world.all()->rank())), ::testing::HasSubstr("[2, 3]"));
    EXPECT_THAT(said(torch::ones({3})), ::testing::HasSubstr("cannot be divided evenly"));
    EXPECT_EQ(said(torch::ones({2, 3})), "nothing");
  });
}

struct Found {
  std::vector<at::Tensor> gradients;  ///< and the loss
  Bytes after_forward = 0;            ///< of the step
  Bytes smallest = 0;                 ///< budget that there is a plan for, of the step
  std::int64_t gathered = 0;          ///< in a step
  plan::StepGraph graph;
};

enum class Room : std::uint8_t { Ample, Smallest };

/// Steps of the model under a plan.
Found steps_of(World& world, Between between, const std::string& strategy, Room room = Room::Ample,
               std::int64_t blocks = 3) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.all()->size(); ++rank) ranks.push_back(rank);
  const auto group = world.group(ranks);  // beside that of all, in which sessions agree
  Parts parts(group, testing::llama(kEven, blocks), between);
  Found found;
  const auto step = [&](const at::Tensor& batch) {
    at::Tensor loss = testing::loss_of(*parts.model, batch);
    found.after_forward = testing::cpu().stats().allocated;
    return loss;
  };
  const auto agreement = agreement_of(world.all());
  const at::Tensor sample = tokens_of(0);
  // Without a limit, as what is gathered cannot be evicted meanwhile.
  auto kinds = replay::record_micro_batches(1, std::nullopt, [&] { return step(sample); }, testing::cpu(),
                                            {.agreement = agreement});
  (void)replay::agree_on(kinds, *agreement);
  std::vector<replay::PlannedStep> planned = replay::planned(std::move(kinds), strategy);
  const Bytes smallest = replay::smallest_budget(planned), budget = room == Room::Smallest ? smallest : 1_GiB;
  Session session(std::move(planned), plan::Budget::for_limit(budget), testing::cpu(), agreement);
  for (int i = 0; i < 2; ++i) {
    found.gradients.clear();  // which no plan knows of
    (void)parts.take_gradients();
    const std::int64_t before = gathers_of(*group);
    testing::cpu().reset_peak();
    const at::Tensor loss = session.backward(step, tokens_of(i)).detach();
    found.gathered = gathers_of(*group) - before;
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_LE(testing::cpu().stats().allocated_peak, budget);
    found.gradients = parts.take_gradients();
    found.gradients.push_back(loss);
  }
  found.graph = session.graph();
  found.after_forward -= found.graph.static_bytes;
  found.smallest = smallest - found.graph.static_bytes;
  return found;
}

int differ(const Found& a, const Found& b) {
  int count = a.gradients.size() == b.gradients.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.gradients.size(), b.gradients.size()); ++i)
    count += same_bits(a.gradients[i], b.gradients[i]) ? 0 : 1;
  return count;
}

/// Of what is gathered again, what no process has.
Bytes elsewhere(const plan::StepGraph& graph) {
  const auto bytes_of = [&](plan::ValueId v) { return graph.values[static_cast<std::size_t>(v)].bytes; };
  Bytes bytes = 0;
  for (plan::OpId op = 0; op < graph.flow.ops(); ++op) {
    if (graph.ops[static_cast<std::size_t>(op)].name != "snug_collective::gather_again") continue;
    bytes += bytes_of(graph.flow.outputs(op).front().value) - bytes_of(graph.flow.inputs(op).front());
  }
  return bytes;
}

/// Whole blocks are recomputed: each process keeps a part of what they begin with, and all gather each of them once.
TEST(KeptParts, AreWhatRecomputedBlocksKeep) {
  for (const int processes : {2, 4}) {
    in_processes(processes, [](World& world) {
      constexpr const char* kBlocks = "recompute_modules(0,1,2)";
      const Found plain = steps_of(world, Between::Whole, "none"), whole = steps_of(world, Between::Whole, kBlocks),
                  kept = steps_of(world, Between::KeptInParts, kBlocks);
      EXPECT_EQ(differ(plain, whole), 0);
      EXPECT_EQ(differ(plain, kept), 0);
      EXPECT_EQ(kept.gathered, whole.gathered + 3);
      EXPECT_GT(elsewhere(kept.graph), 0);
      EXPECT_EQ(kept.after_forward, whole.after_forward - elsewhere(kept.graph));
    });
  }
}

/// What recording has seen of its time is what the plan reckons with: what is there already costs nothing.
TEST(KeptParts, TakeTheTimeOfAGatherWhenTheyAreReplayed) {
  in_processes(2, [](World& world) {
    const Found kept = steps_of(world, Between::KeptInParts, "none");
    std::vector<double> seconds;
    for (const plan::OpInfo& op : kept.graph.ops) {
      if (op.name != "snug_collective::gather_again") continue;
      EXPECT_GT(op.seconds, 20e-6);
      seconds.push_back(op.seconds);
    }
    EXPECT_EQ(seconds.size(), 3U);
    EXPECT_EQ(seconds, std::vector<double>(3, seconds.front())) << "of one size all have that of the shortest";
  });
}

/// Each with the smallest budget that there is a plan for: a deep model does with less.
TEST(KeptParts, LetAStepFitThatDoesNotWithWholeOnes) {
  in_processes(2, [](World& world) {
    constexpr std::int64_t kDeep = 12;
    const Found whole = steps_of(world, Between::Whole, "optimal", Room::Smallest, kDeep),
                kept = steps_of(world, Between::KeptInParts, "optimal", Room::Smallest, kDeep);
    EXPECT_EQ(differ(whole, kept), 0);
    EXPECT_LT(kept.smallest, whole.smallest * 97 / 100);
  });
}

}  // namespace
}  // namespace snug::parallel
