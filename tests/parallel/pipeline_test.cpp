// Stages in several processes, beside one process that has all of them.
#include "snug/parallel/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/agreement.h"
#include "snug/base/errors.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/out_of_budget.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/in_stages.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using plan::FThenB;
using plan::Interleaved;
using plan::OneFOneB;
using plan::PipelineSchedule;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::InStages;
using testing::same_bits;

struct PipelineTerms {
  PipelineSchedule schedule;
  bool recompute = false;
  bool shared = false;
};

void is_that_of_one(World& world, const PipelineTerms& terms) {
  constexpr int kMicroBatches = 8;
  const int rank = world.all()->rank(), size = world.all()->size();
  const int chunks = plan::chunks_of(terms.schedule), stages = size * chunks;
  InStages one({.shared = terms.shared}), mine({.shared = terms.shared});
  std::vector<at::Tensor> expected;
  for (int m = 0; m < kMicroBatches; ++m) {
    at::Tensor x;
    for (int stage = 0; stage < stages; ++stage) x = one.run(stage, stages, x, m, false);
    x.backward();
    expected.push_back(x.detach());
  }
  std::vector<PipelineStage> own;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    own.emplace_back([&mine, &terms, stage = chunk * size + rank, stages](const at::Tensor& input, int m) {
      return mine.run(stage, stages, input, m, terms.recompute);
    });
  }
  std::vector<SharedParameter> shared;
  if (terms.shared) {
    const auto ends = std::vector<int>{0, size - 1};
    if (rank == 0 || rank == size - 1) shared.push_back({mine.embedding->weight, world.group(ends)});
  }
  Pipeline pipeline(world.all(), terms.schedule, own, shared);
  for (int step = 0; step < 2; ++step) {
    const std::vector<at::Tensor> losses = pipeline.step(kMicroBatches);
    ASSERT_EQ(losses.size(), pipeline.has_loss() ? 8U : 0U);
    for (std::size_t m = 0; m < losses.size(); ++m) EXPECT_TRUE(same_bits(losses[m], expected[m])) << m;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int stage = chunk * size + rank;
      const auto wanted = one.parameters_of(stage, stages), found = mine.parameters_of(stage, stages);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        if (terms.shared && found[i].is_same(mine.embedding->weight)) {
          EXPECT_TRUE(torch::allclose(found[i].grad(), wanted[i].grad(), 1e-5, 1e-7));
        } else {
          EXPECT_TRUE(same_bits(found[i].grad(), wanted[i].grad())) << "stage " << stage << ", " << i;
        }
        found[i].mutable_grad() = at::Tensor();
      }
    }
    mine.embedding->zero_grad();
    const plan::PipelineRun run = plan::run_pipeline(plan::actions_of(terms.schedule, {size, kMicroBatches}), {{}});
    EXPECT_EQ(pipeline.most_alive(), run.most_alive[static_cast<std::size_t>(rank)]);
  }
}

TEST(Pipeline, GradientsAreThoseOfOneProcessInTwo) {
  in_processes(2, [](World& world) {
    for (const PipelineSchedule& schedule : std::vector<PipelineSchedule>{FThenB{}, OneFOneB{}, Interleaved{2}})
      is_that_of_one(world, {schedule});
  });
}
TEST(Pipeline, GradientsAreThoseOfOneProcessInFour) {
  in_processes(4, [](World& world) {
    for (const PipelineSchedule& schedule : std::vector<PipelineSchedule>{FThenB{}, OneFOneB{}, Interleaved{2}})
      is_that_of_one(world, {schedule});
  });
}
/// Several recordings of one stage are alive at once.
TEST(Pipeline, StagesMayBeRecomputed) {
  in_processes(2, [](World& world) {
    is_that_of_one(world, {OneFOneB{}, true});
    is_that_of_one(world, {Interleaved{2}, true});
  });
}
/// Gradients are added to what there is, also where it is the sum of a step before.
TEST(Pipeline, SharedParametersAccumulate) {
  in_processes(2, [](World& world) {
    const at::Tensor weight = torch::ones({5}).requires_grad_();
    const bool first = world.all()->rank() == 0;
    const PipelineStage stage = [&](const at::Tensor& input, int m) -> at::Tensor {
      return first ? weight * static_cast<double>(m + 1) : (input * weight).sum();
    };
    Pipeline pipeline(world.all(), OneFOneB{}, {stage}, {{weight, world.all()}});
    for (int step = 1; step <= 3; ++step) {
      (void)pipeline.step(4);
      // The square of ones, times 1 + 2 + 3 + 4.
      EXPECT_TRUE(same_bits(weight.grad(), torch::full({5}, 20.0F * static_cast<float>(step)))) << step;
    }
  });
}

/// Whoever fails says so to the others, which end at once, and all of them can go on.
TEST(Pipeline, AStageThatFailsEndsTheStepInAll) {
  for (const int failing : {0, 1, 2}) {
    in_processes(3, [&](World& world) {
      const int rank = world.all()->rank();
      const at::Tensor weight = torch::ones({100}).requires_grad_();
      bool fails = true;
      const PipelineStage stage = [&](const at::Tensor& input, int m) -> at::Tensor {
        if (fails && rank == failing && m == 3) throw UsageError("the stage has failed");
        const at::Tensor made = (rank == 0 ? torch::ones({100}) : input) * weight * static_cast<double>(m + 1);
        return rank == 2 ? made.sum() : made;
      };
      for (const PipelineSchedule& schedule : std::vector<PipelineSchedule>{FThenB{}, OneFOneB{}}) {
        Pipeline pipeline(world.all(), schedule, {stage});
        fails = true;
        const auto from = std::chrono::steady_clock::now();
        try {
          (void)pipeline.step(6);
          ADD_FAILURE() << "it went on";
        } catch (const UsageError& error) {
          EXPECT_EQ(rank, failing) << error.what();
        } catch (const EndedByAnother& error) {
          EXPECT_NE(rank, failing);
          EXPECT_THAT(error.what(), HasSubstr("has failed"));
        }
        EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(10)) << "and not by the timeout";
        weight.mutable_grad() = at::Tensor();
        fails = false;
        (void)pipeline.step(6);  // of whose messages none is one of those that nobody has received
        double sum = 0;
        for (int m = 1; m <= 6; ++m) sum += static_cast<double>(m) * m * m;
        EXPECT_TRUE(same_bits(weight.grad(), torch::full({100}, static_cast<float>(sum))));
      }
    });
  }
}

/// Where a stage fails.
enum class At : std::uint8_t { Forward, Backward, Evaluation };

/// Of ten micro-batches, the fourth; and whoever has only sent until then is not left waiting either.
TEST(Pipeline, WhereverAStageFailsNobodyIsLeftWaiting) {
  for (const At at : {At::Forward, At::Backward, At::Evaluation}) {
    in_processes(3, [&](World& world) {
      const int rank = world.all()->rank();
      const at::Tensor weight = torch::ones({100}).requires_grad_();
      int failing = 0;
      const auto fail = [] { throw UsageError("the stage has failed"); };
      const PipelineStage stage = [&](const at::Tensor& input, int m) -> at::Tensor {
        const bool fails = rank == failing && m == 3;
        if (fails && at != At::Backward) fail();
        const at::Tensor made = (rank == 0 ? torch::ones({100}) : input) * weight * static_cast<double>(m + 1);
        if (fails && made.requires_grad()) made.register_hook([&](const at::Tensor&) { fail(); });
        return rank == 2 ? made.sum() : made;
      };
      for (const PipelineSchedule& schedule : std::vector<PipelineSchedule>{FThenB{}, OneFOneB{}}) {
        for (failing = 0; failing < 3; ++failing) {
          Pipeline pipeline(world.all(), schedule, {stage});
          const int fails = failing;
          const auto from = std::chrono::steady_clock::now();
          std::string said = "nothing";
          try {
            (void)(at == At::Evaluation ? pipeline.evaluate(10) : pipeline.step(10));
          } catch (const EndedByAnother& error) {
            said = error.what();
            EXPECT_NE(rank, fails);
          } catch (const std::exception& error) {  // the engine makes another of what backward throws
            said = error.what();
            EXPECT_EQ(rank, fails) << said;
          }
          EXPECT_LT(std::chrono::steady_clock::now() - from, std::chrono::seconds(10)) << "and not by the timeout";
          if (rank == fails) {
            EXPECT_THAT(said, HasSubstr("the stage has failed"));
          }
          weight.mutable_grad() = at::Tensor();
          failing = 3;  // none
          (void)pipeline.step(6);
          double sum = 0;
          for (int m = 1; m <= 6; ++m) sum += static_cast<double>(m) * m * m;
          EXPECT_TRUE(same_bits(weight.grad(), torch::full({100}, static_cast<float>(sum))));
          failing = fails;
        }
      }
    });
  }
}

/// What is said of a tensor has come, and there is no room for it: it comes all the same, and the next step has its
/// own.
TEST(Pipeline, AfterAStepWithoutRoomForWhatComesTheNextHasItsOwn) {
  in_processes(2, [](World& world) {
    memory::DeviceMemory& memory = testing::cpu();
    constexpr std::int64_t kElements = 1 << 20;
    const bool first = world.all()->rank() == 0;
    const at::Tensor weight = torch::ones({1}).requires_grad_();
    std::optional<memory::HeldLimit> limit;
    bool is_crowded = true;
    double seen = 0;
    const PipelineStage stage = [&](const at::Tensor& input, int m) -> at::Tensor {
      if (first) return torch::full({kElements}, m + (is_crowded ? 100 : 1), at::kFloat) * weight;
      const at::Tensor made = (input * weight).sum() / kElements;
      if (is_crowded && m == 0) limit.emplace(memory, memory.stats().allocated + 64_KiB);
      seen += made.item<double>();
      return made;
    };
    Pipeline pipeline(world.all(), FThenB{}, {stage});
    if (first) {
      EXPECT_THROW((void)pipeline.step(4), EndedByAnother);
    } else {
      EXPECT_THROW((void)pipeline.step(4), OutOfBudget);
    }
    limit.reset();
    is_crowded = false;
    seen = 0;
    (void)pipeline.step(4);
    EXPECT_EQ(seen, first ? 0 : 1 + 2 + 3 + 4);
  });
}

TEST(Pipeline, SharedParametersHaveTheSumOfAllStages) {
  in_processes(4, [](World& world) { is_that_of_one(world, {.schedule = OneFOneB{}, .shared = true}); });
}
TEST(Pipeline, OfOneProcessHasAllStages) {
  in_processes(1, [](World& world) {
    is_that_of_one(world, {OneFOneB{}});
    is_that_of_one(world, {Interleaved{4}});
  });
}

/// What has been sent and received is not held until the end of the step, and of what is handed on only the graph is.
TEST(Pipeline, HoldsAsManyActivationsAsTheScheduleSays) {
  in_processes(2, [](World& world) {
    memory::DeviceMemory& memory = testing::cpu();
    constexpr std::int64_t kElements = 1 << 16;
    constexpr Bytes kActivation = kElements * 4;
    const at::Tensor weight = torch::ones({1}).requires_grad_();
    const bool first = world.all()->rank() == 0;
    const PipelineStage stage = [&](const at::Tensor& input, int m) -> at::Tensor {
      if (first) return (torch::full({kElements}, m, at::kFloat) * weight).sin();
      return (input * weight).sum();
    };
    for (const PipelineSchedule& schedule : std::vector<PipelineSchedule>{FThenB{}, OneFOneB{}}) {
      Pipeline pipeline(world.all(), schedule, {stage});
      (void)pipeline.step(12);
      const Bytes before = memory.stats().allocated;
      memory.reset_peak();
      (void)pipeline.step(12);
      const auto held = static_cast<double>(memory.stats().allocated_peak - before) / static_cast<double>(kActivation);
      if (schedule == PipelineSchedule(FThenB{})) {
        EXPECT_GT(held, 12);
      } else {
        EXPECT_LT(held, 9) << "of twelve micro-batches two are alive";
      }
      EXPECT_EQ(memory.stats().allocated, before);
    }
  });
}

TEST(Pipeline, RefusesWhatItCannotDo) {
  const auto said = [](const auto& does) -> std::string {
    try {
      does();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing";
  };
  const PipelineStage stage = [](const at::Tensor&, int) { return torch::ones({2}).requires_grad_() * 2; };
  EXPECT_THAT(said([&] { Pipeline(group_of_one(), plan::ZeroBubble{}, {stage}); }), HasSubstr("zero_bubble"));
  EXPECT_THAT(said([&] { Pipeline(group_of_one(), Interleaved{2}, {stage}); }), HasSubstr("1 stages in this process"));
  EXPECT_THAT(said([&] { (void)Pipeline(group_of_one(), OneFOneB{}, {stage}).step(2); }), HasSubstr("no scalar"));
  EXPECT_THAT(said([&] { (void)Pipeline(group_of_one(), OneFOneB{}, {stage}).step(0); }), HasSubstr("0 micro-batches"));
}

}  // namespace
}  // namespace snug::parallel
