// Activations of a decoder in parts, beside the formula of Korthikanti et al. 2022 (arXiv:2205.05198), section 4.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "snug/models/gpt.h"
#include "snug/parallel/group_agreement.h"
#include "snug/parallel/tensor_group.h"
#include "snug/plan/run/presets.h"
#include "snug/replay/record_step.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using testing::cpu;
using testing::in_processes;

// Wide enough that what the formula leaves out, a few numbers of each token, is little.
constexpr std::int64_t kBatchRows = 4, kTokensOfRow = 128, kWidth = 384, kSomeBlocks = 1, kMoreBlocks = 4;

/// What an unplanned step has beside what is there before it.
double bytes_of_step(World& world, std::int64_t blocks, bool sequences) {
  torch::manual_seed(3);
  models::Gpt model(
      models::GptOptions{.blocks = blocks, .width = kWidth, .heads = 4, .sequence = kTokensOfRow, .vocabulary = 64});
  const int processes = world.all()->size();
  if (processes > 1)
    (void)model->divide({.group = tensor_group(world.all()),
                         .between = sequences ? models::Between::Sequences : models::Between::Whole});
  const at::Tensor tokens = torch::randint(0, 64, {kBatchRows, kTokensOfRow});
  const replay::RecordedStep step =
      replay::record_step([&] { return model->loss(tokens, tokens); }, cpu(), {.agreement = agreement_of(world.all())});
  return static_cast<double>(plan::plan_none(step.graph).predicted_peak - step.graph.static_bytes);
}

/// Of one block: in fp32, without dropout, with attention that keeps no probabilities. Outside of parts: what the norms
/// have; where layers begin: what these make, which sequences in parts are gathered to (the paper gathers again in the
/// backward pass; here that is for a plan to say); in parts: queries, keys, values, what attention makes, and the inner
/// width.
double by_formula(int processes, bool sequences) {
  const double one = 4.0 * kBatchRows * kTokensOfRow * kWidth;
  const double outside = 2, begins = 2, inside = 3 + 1 + 4;
  return one * ((sequences ? outside / processes : outside) + begins + inside / processes);
}

void is_what_the_formula_says(World& world, bool sequences) {
  const double found = (bytes_of_step(world, kMoreBlocks, sequences) - bytes_of_step(world, kSomeBlocks, sequences)) /
                       (kMoreBlocks - kSomeBlocks);
  const double expected = by_formula(world.all()->size(), sequences);
  EXPECT_NEAR(found / expected, 1, 0.02) << world.all()->size() << " processes, sequences " << sequences << ": "
                                         << found << " bytes of a block";
}

TEST(ActivationFormula, HoldsOfOneProcess) {
  in_processes(1, [](World& world) { is_what_the_formula_says(world, false); });
}
TEST(ActivationFormula, HoldsOfLayersInParts) {
  for (const int processes : {2, 4})
    in_processes(processes, [](World& world) { is_what_the_formula_says(world, false); });
}
TEST(ActivationFormula, HoldsOfSequencesInPartsBetweenThem) {
  for (const int processes : {2, 4})
    in_processes(processes, [](World& world) { is_what_the_formula_says(world, true); });
}

}  // namespace
}  // namespace snug::parallel
