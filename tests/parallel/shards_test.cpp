// Shards of gradients and of what optimizers keep, beside one process that has all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/optim/clipping.h"
#include "snug/optim/optimizer.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/group_agreement.h"
#include "snug/replay/fit.h"
#include "tests/parallel/processes.h"
#include "tests/parallel/shards_of.h"
#include "tests/parallel/trained_gpt.h"

namespace snug::parallel {
namespace {

using testing::batch_of;
using testing::expect_same;
using testing::in_processes;
using testing::in_shards;
using testing::same_bits;
using testing::take_shards;
using testing::Trained;

const DataParallelOptions kShards{
    .combine = DataParallelOptions::Combine::Sum, .leaves = DataParallelOptions::Leaves::Shards, .bucket = 64_KiB};

/// Of a few KiB, so that matrices go in several strips.
DataParallelOptions in_strips() {
  DataParallelOptions options = kShards;
  options.bucket = 4_KiB;
  return options;
}

bool none_has_gradient(Trained& trained) {
  return std::ranges::none_of(trained.parameters(), [](const at::Tensor& p) { return p.grad().defined(); });
}

void gradients_are_those_of_one(World& world, const DataParallelOptions& options = kShards) {
  const int size = world.all()->size();
  Trained one, mine;
  // As one process has them that takes the first micro-batch of each, then the second of each.
  for (int micro = 0; micro < 2; ++micro) {
    for (int rank = 0; rank < size; ++rank) one.backward(batch_of(rank, micro), 0.5 / size);
  }
  const auto expected = one.take_gradients();
  DataParallel parallel(mine.parameters(), world.all(), options);
  const auto parts = in_shards(mine.parameters(), expected, parallel.shards());
  std::int64_t elements = 0;
  for (const Shard& shard : parallel.shards()) elements += shard.tensor.numel();
  for (int step = 0; step < 2; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      mine.backward(batch_of(world.all()->rank(), micro), 0.5 / size);
      EXPECT_TRUE(none_has_gradient(mine)) << "they are gone as they are handed in";
    }
    expect_same(parts, take_shards(parallel.shards()), "two micro-batches");
  }
  EXPECT_EQ(parallel.counts().passes, 4);
  EXPECT_EQ(parallel.counts().early, parallel.counts().buckets);
  EXPECT_EQ(world.all()->count_of<AllGather>().calls, 0) << "nobody needs what others have";
  // All of them together have each element once.
  const at::Tensor all = torch::full({}, elements, at::kLong);
  world.all()->run(AllReduce{all});
  std::int64_t of_model = 0;
  for (const at::Tensor& p : mine.parameters()) of_model += p.numel();
  EXPECT_EQ(all.item<std::int64_t>(), of_model);
}

TEST(Shards, HaveTheGradientsOfOneProcessWithTheMicroBatchesOfTwo) {
  in_processes(2, [](World& world) { gradients_are_those_of_one(world); });
}
TEST(Shards, HaveTheGradientsOfOneProcessWithTheMicroBatchesOfFour) {
  in_processes(4, [](World& world) { gradients_are_those_of_one(world); });
}
TEST(Shards, HaveTheGradientsOfOneProcessInStrips) {
  in_processes(3, [](World& world) { gradients_are_those_of_one(world, in_strips()); });
}

/// Stage 1: what earlier micro-batches leave stays with each process, as without shards.
TEST(Shards, HaveWhatDataParallelHasWhereMicroBatchesAccumulate) {
  in_processes(3, [](World& world) {
    Trained whole, mine;
    const int rank = world.all()->rank();
    std::vector<at::Tensor> expected;
    const auto step = [&](Trained& trained, DataParallel& parallel) {
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<DataParallel::Accumulating> accumulating;
        if (micro < 2) accumulating.emplace(parallel);
        trained.backward(batch_of(rank, micro), 1.0 / 9);
      }
    };
    {
      DataParallel parallel(whole.parameters(), world.all(), {.combine = DataParallelOptions::Combine::Sum});
      step(whole, parallel);
      expected = whole.take_gradients();
    }
    DataParallel parallel(mine.parameters(), world.all(), kShards);
    step(mine, parallel);
    EXPECT_TRUE(none_has_gradient(mine));
    expect_same(in_shards(mine.parameters(), expected, parallel.shards()), take_shards(parallel.shards()), "stage 1");
    EXPECT_EQ(parallel.counts().passes, 1);
  });
}

/// Parameters in shards, as optimizers want them.
optim::Parameters parameters_of(const DataParallel& parallel) {
  optim::Parameters parts{};
  for (const Shard& shard : parallel.shards()) {
    parts.tensors.push_back(shard.tensor);
    parts.parts.push_back({shard.of, shard.index, shard.first});
  }
  return parts;
}

struct Rule {
  std::string optimizer;
  at::ScalarType weights = at::kFloat;
  optim::FewBitWeights few_bits = {};
};

std::unique_ptr<optim::Optimizer> optimizer_of(const Rule& rule, optim::Parameters parameters) {
  parameters.few_bits = rule.few_bits;
  const optim::OptimizerKind& kind = optim::optimizer_kind(rule.optimizer);
  return kind.make(parameters, own_defaults(std::vector<const optim::OptimizerKind*>{&kind}));
}

Bytes bytes_of(const optim::Optimizer& optimizer) {
  Bytes bytes = 0;
  for (const at::Tensor& tensor : optimizer.state()) bytes += static_cast<Bytes>(tensor.nbytes());
  return bytes;
}

/// Weights and norms after three steps, clipped.
void steps_are_those_of_one(World& world, const DataParallelOptions& options = kShards) {
  const int size = world.all()->size(), rank = world.all()->rank();
  const optim::OtherParts others{.add_up =
                                     [&](auto numbers) {
                                       const at::Tensor all = torch::from_blob(
                                           numbers.data(), {static_cast<std::int64_t>(numbers.size())}, at::kLong);
                                       world.all()->run(AllReduce{all});
                                     },
                                 .largest = {}};
  for (const Rule& rule : std::vector<Rule>{{"adamw"},
                                            {"adamw_8bit"},
                                            {"lion"},
                                            {"sgd"},
                                            {"adamw", at::kBFloat16},
                                            {"adamw_8bit", at::kBFloat16, optim::StochasticRounding{5}}}) {
    Trained one, mine;
    one.model->to(rule.weights);
    mine.model->to(rule.weights);
    DataParallel parallel(mine.parameters(), world.all(), options);
    const auto whole = optimizer_of(rule, one.parameters());
    const auto parts = optimizer_of(rule, parameters_of(parallel));
    EXPECT_LE(static_cast<double>(bytes_of(*parts)), 1.5 * static_cast<double>(bytes_of(*whole)) / size)
        << "a part of it each: " << rule.optimizer;
    for (int step = 0; step < 3; ++step) {
      for (int each = 0; each < size; ++each) one.backward(batch_of(each, step), 1.0 / size);
      mine.backward(batch_of(rank, step), 1.0 / size);
      const double norm = optim::clip_gradients(whole->parameters(), optim::ClipNorm{0.2});
      EXPECT_EQ(optim::clip_gradients(parts->parameters(), optim::ClipNorm{0.2}, others), norm);
      EXPECT_GT(norm, 0.2);
      whole->step(0.01);
      whole->zero_grad();
      parts->step(0.01);
      parts->zero_grad();
      parallel.gather();
      expect_same(one.parameters(), mine.parameters(), rule.optimizer + ", step " + std::to_string(step));
    }
  }
}

TEST(Shards, AreUpdatedAsOneProcessUpdatesAllInTwo) {
  in_processes(2, [](World& world) { steps_are_those_of_one(world); });
}
TEST(Shards, AreUpdatedAsOneProcessUpdatesAllInFour) {
  in_processes(4, [](World& world) { steps_are_those_of_one(world); });
}
TEST(Shards, AreUpdatedAsOneProcessUpdatesAllInStrips) {
  in_processes(3, [](World& world) { steps_are_those_of_one(world, in_strips()); });
}

TEST(Shards, AreUpdatedByLibTorchsOptimizersToo) {
  in_processes(2, [](World& world) {
    Trained one, mine;
    DataParallel parallel(mine.parameters(), world.all(), kShards);
    torch::optim::AdamW whole(one.parameters()), parts(parameters_of(parallel).tensors);
    for (int step = 0; step < 3; ++step) {
      for (int rank = 0; rank < 2; ++rank) one.backward(batch_of(rank, step), 0.5);
      mine.backward(batch_of(world.all()->rank(), step), 0.5);
      whole.step();
      whole.zero_grad();
      parts.step();
      parts.zero_grad();
      parallel.gather();
      expect_same(one.parameters(), mine.parameters(), "step " + std::to_string(step));
    }
  });
}

TEST(Shards, AreNotForOptimizersThatSeeWholeMatrices) {
  Trained mine;
  const DataParallel parallel(mine.parameters(), group_of_one(), kShards);
  for (const std::string name : {"adafactor", "muon"}) {
    try {
      (void)optimizer_of({name}, parameters_of(parallel));
      ADD_FAILURE() << name;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(name + " updates whole matrices"));
    }
  }
  const at::Tensor turned = torch::ones({4, 3}).t().requires_grad_();
  EXPECT_THROW(DataParallel({turned}, group_of_one(), kShards), UsageError);
}

/// Of each of them, what it has: rehearsals ask for others.
TEST(Shards, AreKnownOfAllProcesses) {
  in_processes(3, [](World& world) {
    Trained mine;
    const DataParallel parallel(mine.parameters(), world.all(), kShards), whole(mine.parameters(), world.all());
    Bytes own = 0;
    for (const Shard& shard : parallel.shards()) own += static_cast<Bytes>(shard.tensor.nbytes());
    const at::Tensor all = torch::empty({3}, at::kLong);
    world.all()->run(AllGather{all, torch::full({1}, own, at::kLong)});
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(parallel.bytes_of_shards(rank), all[rank].item<std::int64_t>());
      EXPECT_EQ(whole.bytes_of_shards(rank), 0);
    }
    EXPECT_EQ(parallel.bytes_of_shards(3), 0) << "none of the group";
  });
}

TEST(Shards, OfOneProcessAreAll) {
  Trained one, mine;
  DataParallel parallel(mine.parameters(), group_of_one(), kShards);
  one.backward(batch_of(0));
  mine.backward(batch_of(0));
  expect_same(in_shards(mine.parameters(), one.take_gradients(), parallel.shards()), take_shards(parallel.shards()),
              "alone");
  parallel.gather();
  expect_same(one.parameters(), mine.parameters(), "and stay");
}

/// Fewer units than processes: some have nothing to update, and take part all the same.
TEST(Shards, MayBeNoneInAProcess) {
  in_processes(4, [](World& world) {
    const at::Tensor one = torch::ones({300}).requires_grad_(), mine = torch::ones({300}).requires_grad_();
    DataParallel parallel({mine}, world.all(), kShards);
    EXPECT_EQ(parallel.shards().size(), world.all()->rank() < 2 ? 1U : 0U);
    const auto whole = optimizer_of({"adamw"}, {one}), parts = optimizer_of({"adamw"}, parameters_of(parallel));
    for (int step = 0; step < 2; ++step) {
      (one * torch::arange(300)).sum().backward();
      (mine * torch::arange(300) / 4).sum().backward();
      whole->step(0.1);
      whole->zero_grad();
      parts->step(0.1);
      parts->zero_grad();
      parallel.gather();
      EXPECT_TRUE(same_bits(mine, one));
    }
  });
}

TEST(Shards, AnyhowAndInFewerBitsAreClose) {
  in_processes(3, [](World& world) {
    Trained one, mine;
    for (int rank = 0; rank < 3; ++rank) one.backward(batch_of(rank), 1.0 / 3);
    const auto expected = one.take_gradients();
    for (const bool bf16 : {false, true}) {
      DataParallelOptions options = kShards;
      options.order = bf16 ? Order::ByRank : Order::Anyhow;
      if (bf16) options.reduce_in = at::kBFloat16;
      const DataParallel parallel(mine.parameters(), world.all(), options);
      mine.backward(batch_of(world.all()->rank()), 1.0 / 3);
      const auto parts = in_shards(mine.parameters(), expected, parallel.shards());
      const auto found = take_shards(parallel.shards());
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].scalar_type(), at::kFloat);
        // See DataParallel.AnyhowAndInFewerBitsAreCloseAndTheSameInAll; of a part the largest may be smaller.
        double largest = 0;
        for (const at::Tensor& gradient : expected) largest = std::max(largest, gradient.abs().max().item<double>());
        EXPECT_LE((found[i] - parts[i]).abs().max().item<double>(), largest * 9 * (bf16 ? 0x1p-9 : 0x1p-24));
      }
    }
  });
}

/// The plan of a step whose optimizer has shards: its peak is the predicted one to the byte, and the bits are those of
/// one process without a plan.
void within_a_budget_in_shards(World& world) {
  const int size = world.all()->size(), rank = world.all()->rank();
  memory::DeviceMemory& memory = testing::cpu();
  Trained one, mine;
  {
    optim::Parameters all = one.parameters();
    const auto whole = optimizer_of({"adamw"}, std::move(all));
    for (int step = 0; step < 3; ++step) {
      for (int each = 0; each < size; ++each) one.backward(batch_of(each, step), 1.0 / size);
      whole->step(0.01);
      whole->zero_grad();
    }
  }
  DataParallel parallel(mine.parameters(), world.all(), kShards);
  const auto optimizer = optimizer_of({"adamw"}, parameters_of(parallel));
  replay::Rehearsal update([&] {
    optimizer->rehearse();
    parallel.gather(Reduction::Purpose::Trial);
  });
  update.parameters = optimizer->parameters();
  update.writes = replay::Rehearsal::Writes::Nothing;
  const auto step = [&](const at::Tensor& batch) { return mine.loss(batch) * (1.0 / size); };
  const Bytes before = memory.stats().allocated;
  Bytes unplanned = 0;
  {
    const Session plain =
        fit(step, batch_of(rank, 0), {.budget = 8_GiB, .update = update, .agreement = agreement_of(world.all())});
    unplanned = plain.plan().unplanned_peak;
  }
  EXPECT_EQ(memory.stats().allocated, before) << "a recording leaves no shard of a gradient";
  EXPECT_TRUE(none_has_gradient(mine));
  // The same in all, as plans are then; shards are not.
  const at::Tensor of_all = torch::full({}, before + (unplanned - before) * 7 / 10, at::kLong);
  world.all()->run(AllReduce{of_all, Reduce::Max});
  const Bytes budget = of_all.item<std::int64_t>();
  Session session =
      fit(step, batch_of(rank, 0), {.budget = budget, .update = update, .agreement = agreement_of(world.all())});
  EXPECT_EQ(parallel.counts().passes, 0);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor batch = batch_of(rank, i);
    memory.reset_peak();
    session.backward(step, batch);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_GT(session.last_step().replayed_ops, 0);
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_LE(memory.stats().allocated_peak, budget);
    // The plan is for the process that has most.
    EXPECT_LE(memory.stats().allocated_peak, session.plan().predicted_peak) << i;
    const at::Tensor most = torch::full({}, memory.stats().allocated_peak, at::kLong);
    world.all()->run(AllReduce{most, Reduce::Max});
    EXPECT_EQ(most.item<std::int64_t>(), session.plan().predicted_peak) << i;
    optimizer->step(0.01);
    optimizer->zero_grad();
    parallel.gather();
  }
  expect_same(one.parameters(), mine.parameters(), "three steps under a budget");
}

TEST(Shards, UnderABudgetInTwoProcesses) { in_processes(2, within_a_budget_in_shards); }
TEST(Shards, UnderABudgetInFourProcesses) { in_processes(4, within_a_budget_in_shards); }

/// Weights in each process, and a part of the rest (Rajbhandari et al. 2020, table 1: 4 + 12 / N bytes per parameter in
/// fp32 with Adam's two moments), within 2 %.
TEST(Shards, TakeWhatZeroSays) {
  in_processes(4, [](World& world) {
    memory::DeviceMemory& memory = testing::cpu();
    torch::manual_seed(0);
    const Bytes before = memory.stats().allocated;
    models::Gpt model(models::GptOptions{.blocks = 4, .width = 192, .heads = 3, .sequence = 32, .vocabulary = 4096});
    std::int64_t elements = 0;
    for (const at::Tensor& p : model->parameters()) elements += p.numel();
    DataParallel parallel(
        model->parameters(), world.all(),
        {.combine = DataParallelOptions::Combine::Sum, .leaves = DataParallelOptions::Leaves::Shards});
    const auto optimizer = optimizer_of({"adamw"}, parameters_of(parallel));
    {
      const at::Tensor batch = torch::randint(0, 4096, {2, 32});
      model->loss(batch, batch).backward();
    }
    const auto taken = static_cast<double>(memory.stats().allocated - before);
    const double zero = static_cast<double>(elements) * (4 + 12.0 / 4);
    EXPECT_NEAR(taken / zero, 1, 0.02) << taken << " of " << zero;
  });
}

}  // namespace
}  // namespace snug::parallel
