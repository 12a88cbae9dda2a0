// Weights and optimizer state that live in a tier and come into a window of the device's memory: the same bits, and no
// more memory than the window.
#include "snug/replay/streamed_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>

#include "snug/memory/held_limit.h"
#include "snug/memory/owned_contents.h"
#include "snug/snug.h"
#include "tests/memory/disk_in_memory.h"
#include "tests/replay/all_tiers.h"
#include "tests/replay/by_hand.h"

namespace snug {
namespace {

using testing::Access;
using testing::all_tiers;
using testing::ByHand;
using testing::expect_same;
using testing::fail_with;
using testing::kWeight;
using testing::Net;
using testing::test_memory;
using testing::tiers_on;

TEST(StreamedTensors, TrainToTheSameBitsFromEachTierWithWindowsOfEverySize) {
  const std::vector<at::Tensor> expected = testing::trained_plainly(8, 4);
  for (const StreamOptions& options : all_tiers()) {
    for (const plan::Window window :
         {plan::Window{}, plan::Window{kWeight}, plan::Window{2 * kWeight}, plan::Window{3 * kWeight, 3 * kWeight},
          plan::Window{6 * kWeight, 3 * kWeight}, plan::Window{16 * kWeight, 2 * kWeight}}) {
      SCOPED_TRACE(::testing::Message() << window.bytes << " of which " << window.rotating);
      ByHand training(8);
      StreamedTensors streamed(options);
      streamed.add(training.state());
      EXPECT_EQ(streamed.totals().bytes, 16 * kWeight);
      streamed.open(window);
      training.train(4, [&](const at::Tensor& x) {
        streamed.next_step();
        training(x).backward();
      });
      EXPECT_EQ(streamed.totals().out > 8 * kWeight, window.bytes < 16 * kWeight);
      streamed.bring_back();
      expect_same(expected, training.state());
    }
  }
}

TEST(StreamedTensors, TakeNoMoreMemoryThanTheWindow) {
  ByHand training(8);
  const Bytes before = test_memory().stats().allocated;
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add(training.state());
  EXPECT_EQ(test_memory().stats().allocated, before - 16 * test_memory().rounded(kWeight));
  const Bytes small = test_memory().stats().allocated;
  streamed.open({.bytes = 2 * kWeight});
  EXPECT_LE(test_memory().stats().allocated, small + 2 * kWeight + 8_KiB);
  const Bytes held = test_memory().stats().allocated;
  test_memory().reset_peak();
  {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) {
      for (at::Tensor& t : training.state()) t.mul_(2);
    }
  }
  EXPECT_LE(test_memory().stats().allocated_peak, held + 1_KiB);
  streamed.bring_back();
  EXPECT_EQ(test_memory().stats().allocated, before);
}

TEST(StreamedTensors, WhatIsReadOnlyIsNeverWrittenBack) {
  Net net;
  const at::Tensor x = torch::randn({8, 256});
  const at::Tensor expected = net(x);
  for (const at::Tensor& p : net.layers->parameters()) at::Tensor(p).requires_grad_(false);
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add(net.layers->parameters());
  streamed.open({.bytes = kWeight});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(net(x), expected));
  EXPECT_EQ(streamed.totals().in, 3 * 8 * kWeight);
  EXPECT_EQ(streamed.totals().out, 0);
}

TEST(StreamedTensors, ComeAheadOnceTheirOrderIsKnown) {
  Net net;
  const torch::NoGradGuard no_grad;
  StreamedTensors streamed({.disk_budget = 1_GiB});
  streamed.add(net.layers->parameters());
  streamed.open({.bytes = 4 * kWeight, .rotating = 2 * kWeight});
  for (int i = 0; i < 3; ++i) {
    streamed.next_step();
    (void)net(torch::ones({8, 256}));
    EXPECT_TRUE(i > 0 || streamed.totals().came_ahead == 0);
  }
  EXPECT_GE(streamed.totals().came_ahead, 2 * 5);
  EXPECT_LE(streamed.totals().came, 8 + 2 * 8) << "two of the eight stay, and two come ahead of the next step";
}

TEST(StreamedTensors, AnOperatorOfMoreThanTheWindowTakesMemoryOfItsOwn) {
  const at::Tensor a = torch::randn({256, 256}), b = torch::randn({256, 256}), c = torch::randn({256, 256});
  const at::Tensor expected = torch::cat({a, b, c});
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add({a, b, c});
  streamed.open({.bytes = kWeight});
  EXPECT_TRUE(torch::equal(torch::cat({a, b, c}), expected));
  EXPECT_EQ(streamed.totals().outside, 2);
  EXPECT_EQ(streamed.totals().most_at_once, 3 * kWeight);
  torch::_foreach_add_({a, b, c}, 1);
  streamed.bring_back();
  EXPECT_TRUE(torch::equal(torch::cat({a, b, c}), expected + 1)) << "what was written there is kept";
}

TEST(StreamedTensors, ViewsAndTiedWeightsComeWithTheirMemory) {
  const at::Tensor whole = torch::randn({512, 256});
  const at::Tensor upper = whole.slice(0, 0, 256), turned = whole.t();
  const at::Tensor expected = upper.clone(), sum = turned.sum();
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add({whole, upper, turned, whole});
  EXPECT_EQ(streamed.totals().bytes, 2 * kWeight);
  EXPECT_EQ(whole.storage().data(), nullptr);
  EXPECT_TRUE(torch::equal(upper, expected));
  EXPECT_TRUE(torch::equal(turned.sum(), sum));
}

TEST(StreamedTensors, StayWhereTheyAreWhenTheyAreSmall) {
  const at::Tensor small = torch::randn({100});
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add({small, at::Tensor()});
  EXPECT_NE(small.storage().data(), nullptr);
  EXPECT_EQ(streamed.window(), nullptr);
}

TEST(StreamedTensors, ThatDieLeaveTheirTier) {
  StreamedTensors streamed({.host_budget = 1_GiB});
  {
    const at::Tensor dies = torch::randn({256, 256});
    streamed.add({dies});
    streamed.open({.bytes = kWeight});
    (void)dies.sum();
    EXPECT_GE(streamed.tiers()->stats(memory::Tier::Host).taken, kWeight);
  }
  EXPECT_EQ(streamed.tiers()->stats(memory::Tier::Host).taken, 0);
  EXPECT_EQ(streamed.totals().bytes, 0);
}

TEST(StreamedTensors, OutliveWhoStreamsThemWhereMemoryAllows) {
  const at::Tensor t = torch::randn({256, 256});
  const at::Tensor expected = t.clone();
  {
    StreamedTensors streamed({.disk_budget = 1_GiB});
    streamed.add({t});
  }
  EXPECT_TRUE(torch::equal(t, expected));
}

TEST(StreamedTensors, HaveAnAddressForWhoHoldsThem) {
  const at::Tensor t = torch::ones({256, 256});
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add({t});
  EXPECT_EQ(t.storage().data(), nullptr);
  {
    const memory::ContentsThere there(t.storage(), memory::Access::Write);
    if (t.is_cpu()) t.data_ptr<float>()[7] = 3;
    EXPECT_NE(t.storage().data(), nullptr);
  }
  EXPECT_EQ(t.sum().item<float>(), t.is_cpu() ? 65538 : 65536);
}

TEST(StreamedTensors, HaveNoAddressWhenNobodyUsesThem) {
  const at::Tensor t = torch::ones({256, 256});
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add({t});
  streamed.open({.bytes = kWeight});
  (void)t.sum();
  EXPECT_EQ(t.storage().data(), nullptr) << "what somebody wrote there would be lost";
}

TEST(StreamedTensors, OfUnequalSizesThatFitTogetherFindRoomHoweverTheyLie) {
  const at::Tensor small = torch::randn({128, 256}), a = torch::randn({256, 256}), b = torch::randn({256, 256});
  const at::Tensor expected = torch::cat({a, b});
  StreamedTensors streamed({.host_budget = 1_GiB});
  streamed.add({small, a, b});
  streamed.open({.bytes = 2 * kWeight});
  for (int i = 0; i < 3; ++i) {
    (void)small.sum();
    (void)a.sum();
    EXPECT_TRUE(torch::equal(torch::cat({a, b}), expected));
  }
  EXPECT_EQ(streamed.totals().outside, 0);
}

TEST(StreamedTensors, ThatAreBackCanLeaveAgain) {
  Net net;
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::ones({8, 256}), expected = net(x);
  StreamedTensors streamed({.disk_budget = 1_GiB});
  for (int i = 0; i < 3; ++i) {
    streamed.add(net.layers->parameters());
    streamed.open({.bytes = 3 * kWeight, .rotating = 2 * kWeight});
    for (int k = 0; k < 3; ++k) {
      streamed.next_step();
      EXPECT_TRUE(torch::equal(net(x), expected));
    }
    streamed.bring_back();
  }
}

TEST(StreamedTensors, TellWhatADiskDoesToThem) {
  SNUG_ONLY_ON_THE_CPU("a disk of its own");
  bool fails = false;
  const auto tiers = tiers_on([&](Access access, std::span<std::byte>) {
    if (fails && access == Access::Read) fail_with(EIO);
  });
  const at::Tensor t = torch::ones({256, 256});
  StreamedTensors streamed({}, tiers);
  streamed.add({t});
  streamed.open({.bytes = kWeight});
  fails = true;
  EXPECT_THROW((void)t.sum(), Error);
  EXPECT_THROW((void)t.sum(), Error) << "and it is not taken for read";
  fails = false;
  EXPECT_EQ(t.sum().item<float>(), 65536);
}

TEST(StreamedTensors, TellThatTheirContentsCouldNotBeWritten) {
  SNUG_ONLY_ON_THE_CPU("a disk of its own");
  std::atomic<bool> fails = false;
  const auto tiers = tiers_on([&](Access access, std::span<std::byte>) {
    if (fails && access == Access::Write) fail_with(EIO);
  });
  const at::Tensor changed = torch::ones({256, 256}), other = torch::full({256, 256}, 2.0);
  {
    StreamedTensors streamed({}, tiers);
    streamed.add({changed, other});
    streamed.open({.bytes = 2 * kWeight});
    changed.add_(1);
    (void)other.sum();
    fails = true;
    EXPECT_THROW(streamed.open({.bytes = kWeight}), Error);
    fails = false;
    EXPECT_NO_THROW(streamed.open({.bytes = kWeight})) << "nothing is on its way any more";
    EXPECT_THROW((void)changed.sum(), Error) << "it is lost, and no other contents are taken for it";
    EXPECT_THROW((void)changed.sum(), Error);
    EXPECT_EQ(other.sum().item<float>(), 2 * 65536);
  }
}

TEST(StreamedTensors, OfAnotherDeviceMoveOnlyWhereThatIsAskedFor) {
  if (testing::test_device().is_cpu()) GTEST_SKIP() << "there is one device";
  const at::Tensor here = torch::ones({256, 256}), there = torch::ones({256, 256}, at::kCPU);
  StreamedTensors streamed({.host_budget = 1_GiB}), moving({.device = testing::test_device(), .host_budget = 1_GiB});
  EXPECT_THROW(streamed.add({here, there}), UsageError);
  EXPECT_TRUE(there.is_cpu());
  moving.add({there});
  EXPECT_EQ(there.device(), testing::test_device());
  EXPECT_EQ(there.sum().item<float>(), 65536);
}

TEST(StreamedTensors, RefuseWhatNoTierHasRoomFor) {
  const at::Tensor t = torch::ones({256, 256});
  StreamedTensors streamed({.host_budget = 128_KiB});
  EXPECT_THROW(streamed.add({t}), Error);
  EXPECT_EQ(t.sum().item<float>(), 65536) << "it is where it was";
}

}  // namespace
}  // namespace snug
