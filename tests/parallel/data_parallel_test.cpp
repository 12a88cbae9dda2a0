// Gradients of several processes, beside those of one that does all of their work in their order.
#include "snug/parallel/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "snug/parallel/buckets.h"
#include "snug/parallel/group_agreement.h"
#include "snug/replay/fit.h"
#include "tests/parallel/processes.h"
#include "tests/parallel/torch_ddp.h"
#include "tests/parallel/trained_gpt.h"

namespace snug::parallel {
namespace {

using testing::batch_of;
using testing::expect_same;
using testing::in_processes;
using testing::same_bits;
using testing::Trained;
using Combine = DataParallelOptions::Combine;

TEST(Buckets, HoldOneTypeAndNoMoreThanTheirBytesLastParametersFirst) {
  const std::vector<at::Tensor> parameters = {torch::ones({4}), torch::ones({4}), torch::ones({4}, at::kDouble),
                                              torch::ones({100}), torch::ones({2})};
  EXPECT_EQ(buckets_of(parameters, 32), (std::vector<Bucket>{{4}, {3}, {2}, {1, 0}}));
  EXPECT_EQ(buckets_of(parameters, 1_MiB), (std::vector<Bucket>{{2}, {4, 3, 1, 0}})) << "as they become whole";
  EXPECT_EQ(buckets_of(parameters, 1_MiB, {3, 1}), (std::vector<Bucket>{{2}, {3, 1}, {4, 0}}));
  EXPECT_TRUE(buckets_of({}, 32).empty());
}

void adds_up_by_rank(World& world) {
  const int size = world.all()->size();
  Trained one, mine;
  for (int rank = 0; rank < size; ++rank) one.backward(batch_of(rank), 1.0 / size);
  const auto expected = one.take_gradients();
  for (const Bytes bucket : {Bytes{1}, 64_KiB, 1_GiB}) {
    DataParallel parallel(mine.parameters(), world.all(), {.combine = Combine::Sum, .bucket = bucket});
    for (int pass = 0; pass < 2; ++pass) {
      mine.backward(batch_of(world.all()->rank()), 1.0 / size);
      expect_same(expected, mine.take_gradients(), "buckets of " + std::to_string(bucket));
    }
    EXPECT_EQ(parallel.counts().passes, 2);
    EXPECT_EQ(parallel.counts().buckets, 2 * parallel.buckets());
    EXPECT_EQ(parallel.counts().early, parallel.counts().buckets) << "all were whole before the pass was over";
  }
  // Where it is no more, each has its own again.
  mine.backward(batch_of(0));
  const auto calls = world.all()->count_of<AllToAll>().calls;
  mine.backward(batch_of(0));
  EXPECT_EQ(world.all()->count_of<AllToAll>().calls, calls);
}

TEST(DataParallel, HasTheBitsOfOneProcessThatAddsUpWhatTwoHave) { in_processes(2, adds_up_by_rank); }
TEST(DataParallel, HasTheBitsOfOneProcessThatAddsUpWhatFourHave) { in_processes(4, adds_up_by_rank); }

/// Each process has updated all of it then.
TEST(DataParallel, GathersNothingWhereGradientsAreWhole) {
  in_processes(2, [](World& world) {
    Trained one, mine;
    DataParallel parallel(mine.parameters(), world.all());
    parallel.gather();
    EXPECT_EQ(world.all()->count_of<AllGather>().calls, 0);
    expect_same(one.parameters(), mine.parameters(), "as they were");
  });
}

TEST(DataParallel, MeansDivideEachFirst) {
  in_processes(3, [](World& world) {
    Trained one, mine;
    std::vector<at::Tensor> expected;
    for (int rank = 0; rank < 3; ++rank) {
      one.backward(batch_of(rank));
      auto gradients = one.take_gradients();
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        gradients[i].div_(3);
        rank == 0 ? expected.push_back(gradients[i]) : void(expected[i].add_(gradients[i]));
      }
    }
    const DataParallel parallel(mine.parameters(), world.all());
    mine.backward(batch_of(world.all()->rank()));
    expect_same(expected, mine.take_gradients(), "mean");
  });
}

TEST(DataParallel, AddsToWhatEarlierMicroBatchesLeft) {
  in_processes(2, [](World& world) {
    Trained one, mine;
    std::vector<std::vector<at::Tensor>> of_rank;
    for (int rank = 0; rank < 2; ++rank) {
      for (int micro = 0; micro < 3; ++micro) one.backward(batch_of(rank, micro), 1.0 / 8);
      of_rank.push_back(one.take_gradients());
    }
    for (std::size_t i = 0; i < of_rank[0].size(); ++i) of_rank[0][i].add_(of_rank[1][i]);
    DataParallel parallel(mine.parameters(), world.all(), {.combine = Combine::Sum, .bucket = 64_KiB});
    for (int step = 0; step < 2; ++step) {
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<DataParallel::Accumulating> accumulating;
        if (micro < 2) accumulating.emplace(parallel);
        mine.backward(batch_of(world.all()->rank(), micro), 1.0 / 8);
      }
      expect_same(of_rank[0], mine.take_gradients(), "three micro-batches");
    }
    EXPECT_EQ(parallel.counts().passes, 2);
  });
}

/// Of two, whose sum has one order, the bits are those of PyTorch's own.
TEST(DataParallel, HasTheBitsOfDistributedDataParallel) {
  in_processes(2, [](World& world) {
    Trained mine, torchs;
    testing::TorchDdp ddp(torchs.parameters(), world.launched(), 64_KiB);
    const DataParallel parallel(mine.parameters(), world.all(), {.bucket = 64_KiB});
    for (int step = 0; step < 3; ++step) {
      const at::Tensor batch = batch_of(world.all()->rank(), step);
      mine.backward(batch);
      ddp.before_forward();
      const at::Tensor loss = torchs.loss(batch);
      ddp.before_backward(loss);
      loss.backward();
      expect_same(torchs.take_gradients(), mine.take_gradients(), "step " + std::to_string(step));
    }
  });
}

/// What some processes reach, and what none does.
TEST(DataParallel, KnowsParametersThatAreNotUsed) {
  in_processes(2, [](World& world) {
    const int rank = world.all()->rank();
    const at::Tensor both = torch::ones({3}).requires_grad_(), second = torch::ones({2, 5}).requires_grad_(),
                     none = torch::ones({4}).requires_grad_(), twice = torch::ones({3}).requires_grad_(),
                     frozen = torch::ones({3});
    const DataParallel parallel({both, second, none, twice, frozen}, world.all(), {.combine = Combine::Sum});
    for (int pass = 1; pass <= 2; ++pass) {
      const auto now = static_cast<float>(rank + pass);
      at::Tensor loss = (both * now).sum() + (twice * now).sum() + (twice * twice).sum();
      if (rank == 1) loss = loss + (second * 7).sum();
      loss.backward();
      const auto sum = static_cast<float>(2 * pass + 1);
      EXPECT_TRUE(same_bits(both.grad(), torch::full({3}, sum)));
      EXPECT_TRUE(same_bits(twice.grad(), torch::full({3}, sum + 4))) << "used twice, handed in once";
      EXPECT_TRUE(same_bits(second.grad(), torch::full({2, 5}, 7.F))) << "also where it was not reached";
      EXPECT_FALSE(none.grad().defined());
      EXPECT_FALSE(frozen.grad().defined());
      for (at::Tensor parameter : {both, second, twice}) parameter.mutable_grad() = at::Tensor();
    }
  });
}

TEST(DataParallel, CountsAProcessThatTakesNoPartAsZero) {
  in_processes(2, [](World& world) {
    const at::Tensor weight = torch::ones({3}).requires_grad_(), early = torch::ones({2}).requires_grad_();
    DataParallel parallel({weight, early}, world.all(), {.combine = Combine::Sum});
    {
      const DataParallel::Accumulating accumulating(parallel);
      (early * 2).sum().backward();
    }
    if (world.all()->rank() == 0) {
      (weight * 5).sum().backward();
    } else {
      parallel.hand_in();
    }
    EXPECT_TRUE(same_bits(weight.grad(), torch::full({3}, 5.F)));
    EXPECT_TRUE(same_bits(early.grad(), torch::full({2}, 4.F))) << "of the micro-batch before, in both";
    EXPECT_EQ(parallel.counts().passes, 1);
  });
}

TEST(DataParallel, HandsATiedParameterInOnce) {
  in_processes(2, [](World& world) {
    const at::Tensor tied = torch::ones({300}).requires_grad_(), other = torch::ones({300}).requires_grad_();
    const DataParallel parallel({tied, other, tied}, world.all(), {.combine = Combine::Sum, .bucket = 1});
    EXPECT_EQ(parallel.buckets(), 2U);
    (tied * other * (world.all()->rank() + 1)).sum().backward();
    EXPECT_TRUE(same_bits(tied.grad(), torch::full({300}, 3.F)));
  });
}

TEST(DataParallel, RefusesAPassInsideOfAPass) {
  const at::Tensor weight = torch::ones({3}).requires_grad_(), early = torch::ones({3}).requires_grad_();
  const DataParallel parallel({weight, early}, group_of_one());
  early.register_hook([&](const at::Tensor& gradient) { return gradient; });
  const at::Tensor late = weight * 2;
  late.register_hook([&](const at::Tensor& gradient) {
    if (early.grad().defined()) (early * 3).sum().backward();  // behind the first that was handed in
    return gradient;
  });
  EXPECT_THROW((late.sum() + (early * 1).sum()).backward(), std::exception);
  for (at::Tensor p : {weight, early}) p.mutable_grad() = at::Tensor();
  (weight * 2).sum().backward();
  EXPECT_TRUE(same_bits(weight.grad(), torch::full({3}, 2.F))) << "and goes on";
}

TEST(DataParallel, LeavesGradientsAsTheEngineLaysThemOut) {
  in_processes(2, [](World& world) {
    const at::Tensor turned = torch::randn({3, 4, 5, 6}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
    const DataParallel parallel({turned}, world.all(), {.combine = Combine::Sum});
    (turned * torch::arange(360).view({3, 4, 5, 6}) * (world.all()->rank() + 1)).sum().backward();
    EXPECT_EQ(turned.grad().strides(), turned.strides());
    EXPECT_TRUE(at::equal(turned.grad(), 3 * torch::arange(360, at::kFloat).view({3, 4, 5, 6})));
    turned.grad().mul_(2);  // as clipping does
  });
}

TEST(DataParallel, GoesOnAfterAPassThatThrew) {
  in_processes(2, [](World& world) {
    Trained one, mine;
    for (int rank = 0; rank < 2; ++rank) one.backward(batch_of(rank), 0.5);
    const auto expected = one.take_gradients();
    const DataParallel parallel(mine.parameters(), world.all(), {.combine = Combine::Sum, .bucket = 1});
    const at::Tensor batch = batch_of(world.all()->rank());
    bool fails = true;
    mine.parameters()[6].register_hook([&](const at::Tensor& gradient) {
      if (fails) throw std::runtime_error("in all of them");
      return gradient;
    });
    EXPECT_ANY_THROW(mine.backward(batch, 0.5));
    EXPECT_GT(parallel.counts().early, 0);
    fails = false;
    mine.model->zero_grad();
    mine.backward(batch, 0.5);
    expect_same(expected, mine.take_gradients(), "after it");
  });
}

TEST(DataParallel, AnyhowAndInFewerBitsAreCloseAndTheSameInAll) {
  in_processes(3, [](World& world) {
    Trained one, mine;
    for (int rank = 0; rank < 3; ++rank) one.backward(batch_of(rank), 1.0 / 3);
    const auto expected = one.take_gradients();
    for (const bool bf16 : {false, true}) {
      DataParallelOptions options{.combine = Combine::Sum, .order = bf16 ? Order::ByRank : Order::Anyhow};
      if (bf16) options.reduce_in = at::kBFloat16;
      const DataParallel parallel(mine.parameters(), world.all(), options);
      mine.backward(batch_of(world.all()->rank()), 1.0 / 3);
      const auto found = mine.take_gradients();
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].scalar_type(), at::kFloat);
        const double largest = expected[i].abs().max().item<double>();
        // Two roundings of sums, and one of each term, of 2^-9 each in bf16, of 2^-24 each in fp32.
        EXPECT_LE((found[i] - expected[i]).abs().max().item<double>(), largest * 3 * 3 * (bf16 ? 0x1p-9 : 0x1p-24));
        const at::Tensor first = found[i].clone();
        copy_from_first(*world.all(), {first});
        EXPECT_TRUE(same_bits(first, found[i])) << "the same bits in each process";
      }
    }
  });
}

TEST(DataParallel, CopiesTheFirstsWeights) {
  in_processes(2, [](World& world) {
    torch::manual_seed(world.all()->rank());
    const at::Tensor weight = torch::randn({6, 4}), turned = torch::randn({6, 4}).t();
    copy_from_first(*world.all(), {weight, turned});
    torch::manual_seed(0);
    EXPECT_TRUE(same_bits(weight, torch::randn({6, 4})));
    EXPECT_TRUE(same_bits(turned, torch::randn({6, 4}).t()));
  });
}

TEST(DataParallel, RefusesWhatIsNoParameter) {
  const auto group = group_of_one();
  EXPECT_THROW(DataParallel({torch::ones({2}).requires_grad_() * 2}, group), UsageError);
  const at::Tensor table = torch::ones({4, 2}).requires_grad_();
  const DataParallel parallel({table}, group);
  EXPECT_THROW(at::embedding(table, torch::tensor({1, 2}), -1, false, true).sum().backward(), UsageError);
}

/// The whole promise, in each process: the plan is followed, the cap holds, and the bits are the plain ones.
void within_a_budget(World& world) {
  constexpr int kPasses = 3;
  Trained plain(0.1), planned(0.1);
  const int rank = world.all()->rank();
  memory::DeviceMemory& memory = testing::cpu();
  std::vector<at::Tensor> batches;
  for (int pass = 0; pass < kPasses; ++pass) batches.push_back(batch_of(rank, pass));
  std::vector<std::vector<at::Tensor>> expected;
  Bytes unplanned = 0;
  {
    const DataParallel parallel(plain.parameters(), world.all(), {.bucket = 64_KiB});
    for (const at::Tensor& batch : batches) {
      const Bytes before = memory.stats().allocated;
      memory.reset_peak();
      torch::manual_seed(7 + rank);
      plain.backward(batch);
      unplanned = memory.stats().allocated_peak - before;
      expected.push_back(plain.take_gradients());
    }
  }
  const DataParallel parallel(planned.parameters(), world.all(), {.bucket = 64_KiB});
  const auto step = [&](const at::Tensor& batch) { return planned.loss(batch); };
  const Bytes budget = memory.stats().allocated + unplanned * 7 / 10;
  Session session = fit(step, batches.front(), {.budget = budget, .agreement = agreement_of(world.all())});
  EXPECT_EQ(parallel.counts().passes, 0) << "nothing was handed in while it was tried out";
  for (int pass = 0; pass < kPasses; ++pass) {
    memory.reset_peak();
    torch::manual_seed(7 + rank);
    session.backward(step, batches[static_cast<std::size_t>(pass)]);
    EXPECT_LE(memory.stats().allocated_peak, budget);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_GT(session.last_step().replayed_ops, 0);
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_EQ(memory.stats().allocated_peak, session.plan().predicted_peak) << pass;
    expect_same(expected[static_cast<std::size_t>(pass)], planned.take_gradients(), "under a budget");
  }
}

TEST(DataParallel, UnderABudgetInTwoProcesses) { in_processes(2, within_a_budget); }
TEST(DataParallel, UnderABudgetInFourProcesses) { in_processes(4, within_a_budget); }

}  // namespace
}  // namespace snug::parallel
