// Streamed tensors where somebody does the unusual: looks at contents between operators, streams what has none, lets a
// model go and makes another, has a disk that fails, and fits again in vain.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <vector>

#include "snug/memory/owned_contents.h"
#include "snug/snug.h"
#include "tests/memory/disk_in_memory.h"
#include "tests/replay/by_hand.h"

namespace snug {
namespace {

using testing::Access;
using testing::batch;
using testing::ByHand;
using testing::expect_same;
using testing::fail_with;
using testing::kWeight;
using testing::test_memory;
using testing::tiers_on;

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : parameters) all.push_back(p.grad().clone());
  return all;
}

TEST(StreamedCorners, ARerunThatComparesContentsFindsThem) {
  ByHand training(4);
  const auto loss = [&](const at::Tensor& x) { return training(x); };
  loss(batch(0)).backward();
  const std::vector<at::Tensor> expected = gradients_of(training.parameters());
  training.zero_grad();
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add(training.parameters());
  streamed.open({.bytes = 2 * kWeight});
  checkpoint({.mode = Rerun{.determinism_check = DeterminismCheck::Values}}, loss, batch(0)).backward();
  expect_same(expected, gradients_of(training.parameters()));
  streamed.bring_back();
}

TEST(StreamedCorners, WhatIsDroppedIsComparedThoughAWeightWasWrittenInTheStep) {
  ByHand training(4);
  const auto loss = [&](const at::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& p : training.parameters()) at::Tensor(p).mul_(1);
    }
    return training(x);
  };
  loss(batch(0)).backward();
  const std::vector<at::Tensor> expected = gradients_of(training.parameters());
  training.zero_grad();
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB});
  streamed->add(training.parameters());
  const Bytes budget = test_memory().stats().allocated + 3_MiB;
  for (const VerifyReplay how : {VerifyReplay::Hashes, VerifyReplay::Values}) {
    Session session = fit(loss, batch(0), {.budget = budget, .streamed = streamed, .strategy = "every_block"});
    session.verify_replays(how);
    session.backward(loss, batch(0));
    expect_same(expected, gradients_of(training.parameters()));
    training.zero_grad();
  }
  streamed->bring_back();
}

TEST(StreamedCorners, WhatHasNoBytesStaysWhereItIs) {
  const at::Tensor a = torch::ones({256, 256}), b = torch::full({256, 256}, 2.0), none = torch::empty({0});
  StreamedTensors streamed({.host_budget = 1_GiB, .min_bytes = 0});
  streamed.add({none, a, b});
  EXPECT_EQ(streamed.totals().bytes, 2 * kWeight);
  streamed.open({.bytes = kWeight});
  for (int i = 0; i < 3; ++i) {
    (void)none.sum();
    a.add_(1);
    b.mul_(2);
  }
  streamed.bring_back();
  EXPECT_EQ(a.mean().item<float>(), 4);
  EXPECT_EQ(b.mean().item<float>(), 16);
}

/// Whoever comes first has it: what is let go of is not brought back, and what is back goes as any other.
TEST(StreamedCorners, AnotherThreadMayLetGoOfThemWhileTheyComeBack) {
  for (int i = 0; i < 20; ++i) {
    std::vector<at::Tensor> tensors;
    for (int k = 0; k < 60; ++k)
      tensors.push_back(torch::full({128, 128}, static_cast<float>(k), testing::test_device()));
    const std::vector<at::Tensor> kept(tensors.begin(), tensors.begin() + 5);
    StreamedTensors streamed({.host_budget = 1_GiB});
    streamed.add(tensors);
    std::thread letting_go([&] {
      while (!tensors.empty()) tensors.pop_back();
    });
    streamed.bring_back();
    letting_go.join();
    streamed.add(kept);
    EXPECT_EQ(streamed.totals().bytes, 5 * 64_KiB) << "the others are forgotten";
    streamed.bring_back();
    for (int k = 0; k < 5; ++k) EXPECT_EQ(kept[static_cast<std::size_t>(k)].sum().item<float>(), k * 128 * 128);
  }
}

TEST(StreamedCorners, AModelThatIsGoneLeavesRoomForAnother) {
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 8 * kWeight + 64_KiB});
  for (int models = 0; models < 3; ++models) {
    ByHand training(4);
    streamed->add(training.parameters());  // with their gradients all that there is room for
    const Bytes budget = test_memory().stats().allocated + 3_MiB;
    Session session =
        fit([&](const at::Tensor& x) { return training(x); }, batch(0), {.budget = budget, .streamed = streamed});
    session.backward([&](const at::Tensor& x) { return training(x); }, batch(0));
    for (const at::Tensor& p : training.parameters())
      EXPECT_EQ(memory::has_owner(p.grad()), static_cast<Bytes>(p.nbytes()) == kWeight) << models;
    training.zero_grad();
  }
}

TEST(StreamedCorners, AWriteThatFailsIsNoMatterOfWhatComesIntoItsPlace) {
  SNUG_ONLY_ON_THE_CPU("a disk of its own");
  std::atomic<bool> fails = false;
  const auto tiers = tiers_on([&](Access access, std::span<std::byte>) {
    if (fails && access == Access::Write) fail_with(EIO);
  });
  const at::Tensor changed = torch::ones({256, 256}), other = torch::full({256, 256}, 2.0);
  StreamedTensors streamed({}, tiers);
  streamed.add({changed, other});
  streamed.open({.bytes = kWeight});
  changed.add_(1);
  fails = true;
  EXPECT_EQ(other.sum().item<float>(), 2 * 65536);
  fails = false;
  EXPECT_EQ(other.sum().item<float>(), 2 * 65536);
  EXPECT_THROW((void)changed.sum(), Error) << "whose contents are lost";
}

TEST(StreamedCorners, AFitThatIsRefusedLeavesTheWindowAsItWas) {
  ByHand training(8);
  const auto loss = [&](const at::Tensor& x) { return training(x); };
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB});
  streamed->add(training.state());
  const Bytes budget = test_memory().stats().allocated + 3_MiB;
  const Session session = fit(loss, batch(0), {.budget = budget, .streamed = streamed});
  const plan::Window window = streamed->window()->window();
  EXPECT_GT(window.bytes, 0);
  const auto again = [&](const FitOptions& options, const auto& step) { (void)fit(step, batch(0), options); };
  EXPECT_THROW(again({.budget = budget - 3_MiB + 2 * kWeight, .streamed = streamed}, loss), DoesNotFit);
  EXPECT_EQ(streamed->window()->window(), window);
  EXPECT_THROW(again({.budget = budget, .streamed = streamed},
                     [&](const at::Tensor& x) {
                       (void)training(x);
                       throw std::runtime_error("stop");
                       return at::Tensor();
                     }),
               std::runtime_error);
  EXPECT_EQ(streamed->window()->window(), window);
  EXPECT_THROW(again({.budget = budget, .streamed = streamed, .strategy = "every_blok"}, loss), UsageError);
  EXPECT_EQ(streamed->window()->window(), window);
}

TEST(StreamedCorners, WhatSharesMemorySharesItOnAnotherDeviceToo) {
  if (testing::test_device().is_cpu()) GTEST_SKIP() << "there is one device";
  const at::Tensor whole = torch::ones({2, 256, 256}, at::kCPU);
  const at::Tensor one = whole.select(0, 1), tied = whole.select(0, 1).t();
  std::vector<at::Tensor> both{one.alias(), tied.alias()};
  StreamedTensors streamed({.device = testing::test_device(), .host_budget = 1_GiB});
  streamed.add(both);
  both[0].add_(1);
  EXPECT_EQ(both[1].sum().item<float>(), 2 * 65536);
  EXPECT_EQ(both[1].stride(0), 1);
  EXPECT_EQ(streamed.totals().bytes, 2 * kWeight);
}

}  // namespace
}  // namespace snug
