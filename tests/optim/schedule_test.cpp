// Learning rates against torch.optim.lr_scheduler (see make_references.py), and at their corners.
#include "snug/optim/schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/optim/references.h"

namespace snug::optim {
namespace {

TEST(Schedule, IsTorchs) {
  const std::vector<std::pair<std::string, Decay>> decays{{"constant", decays::Constant{}},
                                                          {"linear", decays::Linear{0.1}},
                                                          {"cosine", decays::Cosine{0.1}},
                                                          {"wsd", decays::StableThenLinear{6, 0.1}}};
  for (const auto& [name, decay] : decays) {
    const Schedule schedule{.peak = 1.0, .warmup_steps = 4, .steps = 20, .decay = decay};
    const at::Tensor expected = reference("schedule." + name);
    for (int step = 0; step < 20; ++step)
      EXPECT_NEAR(schedule.at(step), expected[step].item<double>(), 1e-14) << name << " " << step;
    EXPECT_EQ(schedule.at(25), schedule.at(19));
  }
}

TEST(Schedule, RisesToThePeakAndEndsAtTheFraction) {
  const Schedule schedule{.peak = 1.0, .warmup_steps = 4, .steps = 20, .decay = decays::Cosine{0.1}};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_NEAR(schedule.at(19), 0.1, 1e-12);
  for (int step = 5; step < 20; ++step) EXPECT_LT(schedule.at(step), schedule.at(step - 1)) << step;
  EXPECT_DOUBLE_EQ((Schedule{.peak = 2.0, .warmup_steps = 0, .steps = 1}).at(0), 2.0);
}

TEST(Schedule, ADecayLongerThanTheRunBeginsBehindTheWarmUp) {
  const Schedule schedule{.peak = 1.0, .warmup_steps = 4, .steps = 10, .decay = decays::StableThenLinear{100, 0}};
  EXPECT_EQ(schedule.at(4), 1.0);
  EXPECT_LT(schedule.at(5), 1.0);
  EXPECT_EQ(schedule.at(9), 0.0);
}

}  // namespace
}  // namespace snug::optim
