// Loss scaling against torch.amp.GradScaler: see make_references.py.
#include "snug/optim/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "snug/base/errors.h"
#include "snug/optim/sgd.h"
#include "tests/base/fault.h"
#include "tests/optim/references.h"

namespace snug::optim {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr GradScalerOptions kSmall{.init_scale = 4, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A weight of ones and its optimizer.
struct Trained {
  explicit Trained(std::int64_t size)
      : weight(torch::ones({size}).requires_grad_()), optimizer({weight}, {.momentum = 0, .weight_decay = 0}) {}
  at::Tensor weight;
  Sgd optimizer;
};

TEST(GradScaler, DoesWhatTorchsDoes) {
  Trained first(3), second(2);
  GradScaler scaler(kSmall);
  for (int step = 0; step < 8; ++step) {
    first.optimizer.zero_grad();
    second.optimizer.zero_grad();
    scaler.scale(first.weight.sum() + second.weight.sum()).backward();
    if (step == 2) first.weight.mutable_grad()[1] = kInfinity;
    if (step == 5) second.weight.mutable_grad()[0] = std::numeric_limits<float>::quiet_NaN();
    scaler.unscale(second.optimizer);
    EXPECT_EQ(scaler.overflowed(&second.optimizer), step == 5);
    EXPECT_EQ(scaler.step(first.optimizer, [&] { first.optimizer.step(0.125); }), step != 2);
    EXPECT_EQ(scaler.step(second.optimizer, [&] { second.optimizer.step(0.125); }), step != 5);
    scaler.update();
    const auto expected = [&](const char* what) {
      return reference(std::string("scaler.") + what)[step].item<double>();
    };
    EXPECT_EQ(scaler.get_scale(), expected("scale")) << step;
    EXPECT_EQ(scaler.state_dict()["_growth_tracker"].get<double>(), expected("tracker")) << step;
    EXPECT_EQ(first.weight[0].item<double>(), expected("first")) << step;
    EXPECT_EQ(second.weight[0].item<double>(), expected("second")) << step;
  }
}

/// Of shards, one of which is another process's.
TEST(GradScaler, SkipsAStepThatOverflowsInAnotherProcess) {
  Trained one(2), none(0);
  GradScaler scaler(kSmall);
  std::int64_t elsewhere = 0, told = -1;
  scaler.agree_with({.add_up = {}, .largest = [&](std::span<std::int64_t> numbers) {
                       told = numbers[0];
                       numbers[0] = std::max(numbers[0], elsewhere);
                     }});
  for (const bool overflows : {false, true}) {
    elsewhere = overflows ? 1 : 0;
    one.optimizer.zero_grad();
    scaler.scale(one.weight.sum()).backward();
    EXPECT_EQ(scaler.step(one.optimizer, [&] { one.optimizer.step(0.125); }), !overflows);
    EXPECT_EQ(told, 0) << "here it was finite";
    const double before = scaler.get_scale();
    scaler.update();
    EXPECT_EQ(scaler.get_scale() < before, overflows);
  }
  elsewhere = 0;
  EXPECT_TRUE(scaler.step(none.optimizer, [] {})) << "though this process has no gradient";
  scaler.update();
}

TEST(GradScaler, IsToBeCalledInItsOrder) {
  Trained one(2);
  GradScaler scaler(kSmall);
  const auto backward = [&] {
    one.optimizer.zero_grad();
    scaler.scale(one.weight.sum()).backward();
  };
  const auto step = [&] { scaler.step(one.optimizer, [] {}); };
  EXPECT_THAT([&] { scaler.update(); },
              ThrowsMessage<Error>(HasSubstr("No inf checks were recorded prior to update.")));
  EXPECT_THAT(step, ThrowsMessage<Error>(HasSubstr("No inf checks were recorded for this optimizer.")));
  scaler.update(4.0);
  backward();
  scaler.unscale(one.optimizer);
  EXPECT_THAT(
      [&] { scaler.unscale(one.optimizer); },
      ThrowsMessage<Error>(HasSubstr("unscale_() has already been called on this optimizer since the last update().")));
  EXPECT_EQ(one.weight.grad()[0].item<float>(), 1.0F) << "unscaled once";
  step();
  EXPECT_THAT(step, ThrowsMessage<Error>(HasSubstr("step() has already been called since the last update().")));
  EXPECT_THAT([&] { scaler.unscale(one.optimizer); },
              ThrowsMessage<Error>(HasSubstr("unscale_() is being called after step().")));
  scaler.update();
  backward();
  one.weight = torch::ones({2}).to(at::kHalf).requires_grad_();
  one.weight.mutable_grad() = torch::ones({2}).to(at::kHalf);
  Sgd few({one.weight}, {});
  EXPECT_THAT([&] { scaler.unscale(few); }, ThrowsMessage<Error>(HasSubstr("Attempting to unscale FP16 gradients.")));
}

TEST(GradScaler, UnscalesSparseGradientsWhoseIndicesRepeat) {
  const at::Tensor table = torch::ones({4, 2}).requires_grad_();
  Sgd optimizer({table}, {});
  GradScaler scaler(kSmall);
  scaler.scale(at::embedding(table, at::tensor({1, 3, 1}), -1, false, /*sparse=*/true).sum()).backward();
  ASSERT_TRUE(table.grad().is_sparse());
  scaler.unscale(optimizer);
  EXPECT_TRUE(at::equal(table.grad().to_dense().select(1, 0), at::tensor({0.0F, 2.0F, 0.0F, 1.0F})));
  EXPECT_FALSE(scaler.overflowed(&optimizer));
}

TEST(GradScaler, TakesOptimizersOfLibTorch) {
  const at::Tensor weight = torch::ones({3}).requires_grad_();
  torch::optim::SGD optimizer({weight}, 0.5);
  GradScaler scaler(kSmall);
  for (const bool overflows : {false, true}) {
    optimizer.zero_grad();
    scaler.scale(weight.sum()).backward();
    if (overflows) weight.mutable_grad()[2] = kInfinity;
    EXPECT_EQ(scaler.step(optimizer, [&] { optimizer.step(); }), !overflows);
    scaler.update();
  }
  EXPECT_EQ(weight[0].item<float>(), 0.5F);
  EXPECT_EQ(scaler.get_scale(), 2);
}

TEST(GradScaler, DoesNotGrowPastTheLargestNumber) {
  Trained one(1);
  GradScaler scaler({.init_scale = 3e38, .growth_interval = 1});
  one.weight.mutable_grad() = torch::ones({1});
  scaler.step(one.optimizer, [] {});
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 3e38F);
}

TEST(GradScaler, ItsStateGoesOn) {
  GradScaler scaler(kSmall), other({.growth_interval = 7});
  Trained one(1);
  one.weight.mutable_grad() = torch::ones({1});
  scaler.step(one.optimizer, [] {});
  scaler.update();
  const nlohmann::json state = scaler.state_dict();
  EXPECT_EQ(state, (nlohmann::json{{"scale", 4.0},
                                   {"growth_factor", 2.0},
                                   {"backoff_factor", 0.5},
                                   {"growth_interval", 2},
                                   {"_growth_tracker", 1}}));
  other.load_state_dict(state);
  EXPECT_EQ(other.state_dict(), state);
  for (const char* key : {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}) {
    nlohmann::json lacking = state;
    lacking.erase(key);
    lacking["growth_interval"] =
        key == std::string("growth_interval") ? nlohmann::json("often") : lacking["growth_interval"];
    EXPECT_THAT(snug::testing::fault([&] { other.load_state_dict(lacking); }), HasSubstr(key));
    EXPECT_EQ(other.state_dict(), state) << "a state that is refused changes nothing";
  }
  EXPECT_THAT(snug::testing::fault([&] { other.load_state_dict(nlohmann::json::object()); }),
              HasSubstr("The source state dict is empty"));
}

TEST(GradScaler, OneThatIsNotEnabledDoesNothing) {
  GradScaler scaler({.enabled = false});
  Trained one(1);
  const at::Tensor loss = one.weight.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  bool stepped = false;
  EXPECT_TRUE(scaler.step(one.optimizer, [&] { stepped = true; }));
  EXPECT_TRUE(stepped);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_EQ(scaler.state_dict(), nlohmann::json::object());
  scaler.load_state_dict(nlohmann::json::object());
}

TEST(GradScaler, RefusesFactorsThatDoNotGrowAndFall) {
  const auto with = [](GradScalerOptions options) {
    return snug::testing::fault([&] { const GradScaler scaler(options); });
  };
  EXPECT_EQ(with({.growth_factor = 1}), "GradScaler: The growth factor must be > 1.0.");
  EXPECT_THAT(with({.backoff_factor = 1}), HasSubstr("The backoff factor must be < 1.0"));
  EXPECT_THAT(with({.growth_interval = 0}), HasSubstr("must be positive"));
}

}  // namespace
}  // namespace snug::optim
