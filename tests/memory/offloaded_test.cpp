#include "snug/memory/offloaded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"

namespace snug::memory {
namespace {

Bytes bytes_of(const at::Tensor& t) { return static_cast<Bytes>(t.storage().nbytes()); }

bool same_bits(const at::Tensor& t, const c10::Storage& storage) {
  return storage.nbytes() >= t.storage().nbytes() && std::memcmp(t.data_ptr(), storage.data(), t.nbytes()) == 0;
}

TEST(Offloaded, ComesBackFromEachTier) {
  for (const Tier tier : {Tier::Host, Tier::Disk}) {
    Tiers tiers;
    const at::Tensor x = torch::randn({1000, 37});
    {
      const Offloaded contents(x.storage(), bytes_of(x), tiers, tier);
      EXPECT_EQ(contents.bytes(), bytes_of(x));
      EXPECT_GE(tiers.stats(tier).taken, bytes_of(x));
      const Offloaded::Arriving back = contents.fetch();
      back.there.wait();
      EXPECT_TRUE(same_bits(x, back.storage));
      at::Tensor other = torch::zeros_like(x);
      contents.write_to(other.storage());
      EXPECT_TRUE(same_bits(x, other.storage()));
    }
    EXPECT_EQ(tiers.stats(tier).taken, 0);
    EXPECT_EQ(tiers.stats(tier == Tier::Host ? Tier::Disk : Tier::Host).taken_peak, 0);
  }
}

TEST(Offloaded, TheNearestTierOfTheCpuIsTheHostWhereThatHasABudget) {
  const c10::Device cpu(c10::kCPU);
  EXPECT_EQ(Tiers().nearest(cpu), Tier::Disk);
  EXPECT_EQ(Tiers({.disk = 1_GiB}).nearest(cpu), Tier::Disk);
  EXPECT_EQ(Tiers({.host = 1_GiB}).nearest(cpu), Tier::Host);
  EXPECT_EQ(Tiers().nearest(c10::Device(c10::kCUDA, 0)), Tier::Host);
}

TEST(Offloaded, BudgetsArePositive) {
  EXPECT_THROW(Tiers({.host = 0}), UsageError);
  EXPECT_THROW(Tiers({.disk = -1}), UsageError);
}

TEST(Offloaded, ThatDoesNotFitLeavesNothing) {
  Tiers tiers({.host = 1_MiB, .disk = 1_MiB + 4_KiB});
  const at::Tensor x = torch::ones({512, 1024});
  for (const Tier tier : {Tier::Host, Tier::Disk}) {
    EXPECT_THROW(Offloaded(x.storage(), bytes_of(x), tiers, tier), Error);
    EXPECT_EQ(tiers.stats(tier).taken, 0);
    EXPECT_NO_THROW(Offloaded(x.storage(), 1_MiB, tiers, tier));
    EXPECT_GE(tiers.stats(tier).budget, 1_MiB);
  }
}

}  // namespace
}  // namespace snug::memory
