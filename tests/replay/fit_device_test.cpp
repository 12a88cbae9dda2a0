// The device whose memory a budget is for.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "snug/snug.h"
#include "tests/device/test_device.h"

namespace snug {
namespace {

struct OwnBatch {
  at::Tensor input;
};

TEST(FitDevice, IsThatOfTheSamplesFirstTensor) {
  const at::Tensor t = torch::zeros({2}), meta = torch::zeros({2}, c10::kMeta);
  const c10::Device there = testing::test_device();
  EXPECT_EQ(replay::device_of(t), there);
  EXPECT_EQ(replay::device_of(std::tuple(1, t, meta)), there);
  EXPECT_EQ(replay::device_of(std::pair(meta, t)), c10::Device(c10::kMeta));
  EXPECT_EQ(replay::device_of(std::vector{at::Tensor(), t}), there);
  EXPECT_EQ(replay::device_of(std::map<std::string, at::Tensor>{{"input", t}}), there);
  EXPECT_EQ(replay::device_of(torch::data::Example<>(t, meta)), there);
  EXPECT_EQ(replay::device_of(OwnBatch{t}), std::nullopt);
  EXPECT_EQ(replay::device_of(std::string("words")), std::nullopt);
}

TEST(FitDevice, IsAskedForWhereNothingTellsAndThereAreSeveral) {
  const at::Tensor w = torch::ones({4}, torch::requires_grad());
  const auto step = [](const OwnBatch& batch) { return batch.input.square().sum(); };
  const auto fitted = [&](const FitOptions& options) { return fit(step, OwnBatch{w}, options); };
  if (memory::devices().size() > 1) {
    EXPECT_THROW(fitted({.budget = 1_GiB}), UsageError);
  }
  EXPECT_GT(fitted({.budget = 1_GiB, .device = testing::test_device()}).plan().predicted_peak, 0);
}

}  // namespace
}  // namespace snug
