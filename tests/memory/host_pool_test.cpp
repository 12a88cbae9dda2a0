#include "snug/memory/host_pool.h"

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/tier_full.h"
#include "snug/memory/tiers.h"

namespace snug::memory {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void fill(const HostPool::Block& block, int with) { std::memset(block.bytes().data(), with, block.bytes().size()); }
bool holds(const HostPool::Block& block, int with) {
  for (const std::byte b : block.bytes()) {
    if (b != static_cast<std::byte>(with)) return false;
  }
  return true;
}

TEST(HostPool, UsesItsBlocksAgain) {
  HostPool pool;
  for (int step = 0; step < 100; ++step) {
    std::vector<HostPool::Block> blocks;
    for (const Bytes size : {100_KiB, 1_MiB, Bytes{5}, 300_KiB}) fill(blocks.emplace_back(pool.take(size)), step);
    EXPECT_EQ(blocks[2].bytes().size(), 5U);
  }
  const TierStats stats = pool.stats();
  EXPECT_EQ(stats.taken, 0);
  EXPECT_EQ(stats.taken_peak, 1_MiB + 400_KiB + 4_KiB);
  EXPECT_EQ(stats.held, stats.taken_peak) << "no step takes more than the first";
}

TEST(HostPool, IsOutsideOfTheDevicesMemoryAndItsLimit) {
  DeviceMemory& memory = device_memory(c10::kCPU);
  const Bytes before = memory.stats().allocated;
  memory.set_limit(before + 1_MiB);
  HostPool pool;
  const HostPool::Block block = pool.take(16_MiB);
  fill(block, 1);
  EXPECT_EQ(memory.stats().allocated, before);
  memory.set_limit(std::nullopt);
}

TEST(HostPool, HasABudget) {
  HostPool pool(c10::kCPU, 1_MiB);
  std::optional<HostPool::Block> first = pool.take(700_KiB);
  fill(*first, 7);
  EXPECT_THAT([&] { (void)pool.take(400_KiB); },
              ThrowsMessage<Error>(HasSubstr(
                  "400.0 KiB do not fit into the host budget of 1.0 MiB, of which 700.0 KiB are taken; raise it")));
  EXPECT_TRUE(holds(*first, 7));
  first.reset();
  const HostPool::Block all = pool.take(1_MiB);
  fill(all, 8);
  EXPECT_EQ(pool.stats().held, 1_MiB);
  EXPECT_EQ(pool.stats().budget, 1_MiB);
}

TEST(HostPool, SharesABudgetWithOthers) {
  const auto budget = std::make_shared<HostBudget>(1_MiB);
  HostPool one(c10::kCPU, budget), other(c10::kCPU, budget);
  std::optional<HostPool::Block> first = one.take(700_KiB);
  fill(*first, 7);
  EXPECT_THROW((void)other.take(400_KiB), Error);
  const HostPool::Block second = other.take(300_KiB);
  EXPECT_EQ(budget->stats().taken, 1000_KiB);
  first.reset();
  // What the other has kept for its next block goes back to the system.
  const HostPool::Block third = other.take(600_KiB);
  EXPECT_LE(budget->stats().held, 1_MiB);
  EXPECT_EQ(budget->stats().taken_peak, 1000_KiB) << "of one moment";
}

TEST(Tiers, HaveOneHostBudgetForContentsOfAllDevices) {
  Tiers tiers({.host = 1_MiB});
  std::optional<HostPool::Block> block = tiers.host(c10::kCPU).take(1_MiB);
  EXPECT_THROW((void)tiers.host(c10::kMeta).take(1_MiB), TierFull);
  block.reset();
  block = tiers.host(c10::kMeta).take(1_MiB);
  EXPECT_EQ(tiers.stats(Tier::Host).taken_peak, 1_MiB);
}

TEST(Tiers, RefuseADiskBudgetWhereTheDiskIsMemory) {
  if (!is_in_memory("/dev/shm")) GTEST_SKIP() << "no tmpfs";
  const char* const before = std::getenv("TMPDIR");
  const std::string folder = before != nullptr ? before : "";
  ::setenv("TMPDIR", "/dev/shm", 1);
  EXPECT_THAT([] { (void)Tiers({.disk = 1_MiB}); },
              ThrowsMessage<UsageError>(HasSubstr("disk budget: /dev/shm is in memory (a tmpfs)")));
  EXPECT_NO_THROW((void)Tiers({.host = 1_MiB}));
  before != nullptr ? ::setenv("TMPDIR", folder.c_str(), 1) : ::unsetenv("TMPDIR");
  EXPECT_FALSE(is_in_memory("/no/such/folder"));
  EXPECT_FALSE(is_in_memory("/proc"));
}

TEST(HostPool, KeepsBlocksApartInAnyOrder) {
  HostPool pool(c10::kCPU, 3_MiB);
  std::mt19937 random(3);
  std::vector<std::pair<HostPool::Block, int>> blocks;
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.size() < 3 || random() % 2 == 0) {
      try {
        blocks.emplace_back(pool.take(static_cast<Bytes>(random() % 200000 + 1)), i % 251);
        fill(blocks.back().first, blocks.back().second);
      } catch (const Error&) {
        ++refused;
      }
      ASSERT_LE(pool.stats().held, 3_MiB);
    } else {
      const std::size_t which = random() % blocks.size();
      ASSERT_TRUE(holds(blocks[which].first, blocks[which].second));
      std::swap(blocks[which], blocks.back());
      blocks.pop_back();
    }
  }
  EXPECT_GT(refused, 0);
  blocks.clear();
  EXPECT_EQ(pool.stats().taken, 0);
}

}  // namespace
}  // namespace snug::memory
