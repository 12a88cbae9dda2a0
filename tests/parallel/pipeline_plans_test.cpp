// Pipelines under budgets: each process plans its stages, which have several micro-batches in flight.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "snug/parallel/group_agreement.h"
#include "snug/parallel/pipeline.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"

#include "snug/replay/fit.h"
#include "snug/replay/planned_step.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/in_stages.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using plan::FThenB;
using plan::Interleaved;
using plan::OneFOneB;
using plan::PipelineSchedule;
using testing::cpu;
using testing::in_processes;
using testing::InStages;
using testing::same_bits;

constexpr int kBatchesOfStep = 8;

/// The stages of one process, and what a step of them does.
struct Stages {
  Stages(World& world, const PipelineSchedule& schedule)
      : model({.width = 64, .rows = 96}), size(world.all()->size()), chunks(plan::chunks_of(schedule)) {
    std::vector<PipelineStage> own;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int stage = chunk * size + world.all()->rank(), stages = chunks * size;
      for (const at::Tensor& p : model.parameters_of(stage, stages)) parameters.push_back(p);
      own.emplace_back(
          [this, stage, stages](const at::Tensor& input, int m) { return model.run(stage, stages, input, m, false); });
    }
    pipeline = std::make_unique<Pipeline>(world.all(), schedule, own);
  }
  [[nodiscard]] Bytes bytes() const {
    Bytes all = 0;
    for (const at::Tensor& p : parameters) all += static_cast<Bytes>(p.nbytes());
    return all;
  }
  at::Tensor step() {
    losses = pipeline->step(kBatchesOfStep);
    return {};
  }
  /// Of the losses and gradients, which go.
  std::vector<at::Tensor> take_outcome() {
    std::vector<at::Tensor> outcome = std::exchange(losses, {});
    for (const at::Tensor& p : parameters) outcome.push_back(std::exchange(at::Tensor(p).mutable_grad(), at::Tensor()));
    return outcome;
  }

  InStages model;
  int size, chunks;
  std::vector<at::Tensor> parameters;
  std::unique_ptr<Pipeline> pipeline;
  std::vector<at::Tensor> losses;
};

void holds(Stages& stages, const std::vector<at::Tensor>& expected, Bytes budget,
           const std::shared_ptr<Agreement>& agreement) {
  Session session =
      fit([&](int) { return stages.step(); }, 0, {.budget = budget, .device = c10::kCPU, .agreement = agreement});
  for (int step = 0; step < 3; ++step) {
    cpu().reset_peak();
    session.backward([&] { return stages.step(); });
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_FALSE(session.last_step().planned_anew);
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_LE(cpu().stats().mapped_peak, budget);
    EXPECT_LE(cpu().stats().allocated_peak, session.predicted_peak());
    // Gradients are not there while all are in flight, where that is so.
    EXPECT_GE(cpu().stats().allocated_peak + stages.bytes(),
              session.predicted_peak() * (stages.chunks > 1 ? 8 : 9) / 10);

    const std::vector<at::Tensor> outcome = stages.take_outcome();
    ASSERT_EQ(outcome.size(), expected.size());
    for (std::size_t i = 0; i < outcome.size(); ++i) EXPECT_TRUE(same_bits(outcome[i], expected[i])) << i;
  }
}

void is_planned(World& world, const PipelineSchedule& schedule) {
  const std::string trace = "process " + std::to_string(world.all()->rank()) + ", " + plan::name_of(schedule);
  SCOPED_TRACE(trace);
  const auto agreement = agreement_of(world.all());
  Stages stages(world, schedule);
  (void)stages.step();
  const std::vector<at::Tensor> expected = stages.take_outcome();
  const replay::RecordedStep recorded =
      replay::record_step([&] { return stages.step(); }, cpu(), {.agreement = agreement});
  (void)stages.take_outcome();
  EXPECT_EQ(recorded.kind, replay::StepKind::MicroBatch);
  EXPECT_EQ(recorded.further.size(), static_cast<std::size_t>(stages.chunks) - 1);
  const plan::PipelineRun run =
      plan::run_pipeline(plan::actions_of(schedule, {stages.size, kBatchesOfStep}), {plan::StageSeconds{}});
  std::int32_t in_flight = recorded.graph.in_flight;
  for (const plan::StepGraph& graph : recorded.further) in_flight += graph.in_flight;
  const int most_alive = run.most_alive[static_cast<std::size_t>(world.all()->rank())];
  if (stages.chunks == 1) {
    EXPECT_EQ(in_flight, most_alive);
  } else {
    EXPECT_GE(in_flight, most_alive) << "of each kind at its own time";
  }
  const Bytes before = recorded.graph.static_bytes, step = plan::plan_none(recorded.graph).predicted_peak - before;
  const Bytes floor = replay::smallest_budget(replay::planned({recorded}, "optimal"));
  for (const int share : {80, 60, 0}) holds(stages, expected, std::max(floor, before + step * share / 100), agreement);
}

TEST(PipelinePlans, HoldInTwoProcesses) {
  in_processes(2, [](World& world) {
    for (const PipelineSchedule& schedule : std::vector<PipelineSchedule>{FThenB{}, OneFOneB{}, Interleaved{2}})
      is_planned(world, schedule);
  });
}
/// What does not fit in one of them is refused in all, and what does then has a session in all.
TEST(PipelinePlans, AreRefusedInAllWhereOneHasTooLittle) {
  in_processes(2, [](World& world) {
    const auto agreement = agreement_of(world.all());
    Stages stages(world, OneFOneB{});
    const auto fitted = [&](Bytes budget) {
      return fit([&](int) { return stages.step(); }, 0,
                 {.budget = budget, .device = c10::kCPU, .agreement = agreement});
    };
    const Bytes much = cpu().stats().allocated + 64_MiB, little = cpu().stats().allocated + 512_KiB;
    for (const int poor : {0, 1}) {
      const bool is_poor = world.all()->rank() == poor;
      try {
        (void)fitted(is_poor ? little : much);
        ADD_FAILURE() << "it fits";
      } catch (const DoesNotFit& error) {
        EXPECT_TRUE(is_poor);
        EXPECT_GT(error.floor().floor, little);
      } catch (const Error& error) {
        EXPECT_FALSE(is_poor);
        EXPECT_NE(std::string(error.what()).find("another process"), std::string::npos) << error.what();
      }
    }
    Session session = fitted(much);
    session.backward([&] { return stages.step(); });
    EXPECT_TRUE(session.last_step().followed_plan);
  });
}
TEST(PipelinePlans, HoldInFourProcesses) {
  in_processes(4, [](World& world) { is_planned(world, OneFOneB{}); });
}

}  // namespace
}  // namespace snug::parallel
