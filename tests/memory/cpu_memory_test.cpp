#include "snug/memory/cpu_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/process_memory.h"
#include "tests/memory/resident_pages.h"

namespace snug::memory {
namespace {

/// Figures are compared with those at the start of the test: LibTorch has blocks of its own.
class CpuMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    memory.release_cached();
    memory.reset_peak();
    before = memory.stats();
  }
  Bytes by_tag(Tag tag) const { return get(memory.stats().by_tag, tag) - get(before.by_tag, tag); }
  Bytes allocated() const { return memory.stats().allocated - before.allocated; }
  static Bytes get(const ByTag& bytes, Tag tag) { return bytes[static_cast<std::size_t>(tag)]; }
  static Bytes sum(const ByTag& bytes) { return std::accumulate(bytes.begin(), bytes.end(), Bytes{0}); }

  CpuMemory& memory = CpuMemory::instance();
  Stats before;
};

TEST_F(CpuMemoryTest, IsLibTorchsAllocatorForTheCpu) {
  EXPECT_EQ(c10::GetCPUAllocator(), &memory);
  EXPECT_EQ(&device_memory(c10::kCPU), &memory);
  EXPECT_EQ(memory.device(), c10::Device(c10::kCPU));
}

TEST_F(CpuMemoryTest, RoundsABlockAndItsHeader) {
  EXPECT_EQ(memory.rounded(0), 0);
  EXPECT_EQ(memory.rounded(1), 128);
  EXPECT_EQ(memory.rounded(64), 128);
  EXPECT_EQ(memory.rounded(65), 192);
  EXPECT_EQ(memory.rounded(4_KiB - 64), 4_KiB);
  EXPECT_EQ(memory.rounded(4_KiB - 63), 8_KiB);
  EXPECT_EQ(memory.rounded(32_KiB), 36_KiB);
  EXPECT_EQ(memory.rounded(1_MiB), 1_MiB + 4_KiB);
  EXPECT_EQ(memory.rounded(1_MiB - 64), 1_MiB);
}

TEST_F(CpuMemoryTest, CountsWhatItSaysThatAllocationsTake) {
  Bytes expected = 0;
  std::vector<c10::DataPtr> blocks;
  for (const Bytes bytes : {Bytes{1}, Bytes{64}, Bytes{100}, Bytes{5000}, 32_KiB - 64, 32_KiB, 100_KiB, 3_MiB}) {
    blocks.push_back(memory.allocate(static_cast<std::size_t>(bytes)));
    expected += memory.rounded(bytes);
    EXPECT_EQ(allocated(), expected) << bytes;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(blocks.back().get()) % 64, 0U) << bytes;
    EXPECT_EQ(blocks.back().device(), c10::Device(c10::kCPU));
    std::memset(blocks.back().get(), 1, static_cast<std::size_t>(bytes));
  }
  EXPECT_EQ(memory.stats().allocations - before.allocations, 8);
  EXPECT_GE(memory.stats().mapped, memory.stats().allocated);
  blocks.clear();
  EXPECT_EQ(allocated(), 0);
}

TEST_F(CpuMemoryTest, TakesNothingForZeroBytes) {
  const c10::DataPtr none = memory.allocate(0);
  EXPECT_EQ(none.get(), nullptr);
  EXPECT_EQ(none.device(), c10::Device(c10::kCPU));
  EXPECT_EQ(memory.stats().allocations, before.allocations);
  EXPECT_EQ(memory.raw_allocate(0), nullptr);
  memory.raw_deallocate(nullptr);
}

TEST_F(CpuMemoryTest, AllocatesAndFreesRaw) {
  void* block = memory.raw_allocate(1000);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block) % 64, 0U);
  EXPECT_EQ(allocated(), memory.rounded(1000));
  memory.raw_deallocate(block);
  EXPECT_EQ(allocated(), 0);
}

TEST_F(CpuMemoryTest, CountsTensorsAndReturnsToZero) {
  {
    const TagScope scope(Tag::Activations);
    const at::Tensor a = at::empty({1000, 1000}, at::TensorOptions(at::kFloat));
    const at::Tensor b = at::empty({7}, at::TensorOptions(at::kByte));
    EXPECT_EQ(by_tag(Tag::Activations), memory.rounded(4'000'000) + memory.rounded(7));
    EXPECT_EQ(allocated(), by_tag(Tag::Activations));
  }
  EXPECT_EQ(allocated(), 0);
  EXPECT_EQ(by_tag(Tag::Activations), 0);
}

TEST_F(CpuMemoryTest, MovesABlockToAnotherTag) {
  const TagScope scope(Tag::Workspace);
  const at::Tensor tensor = at::empty({100'000}, at::TensorOptions(at::kFloat));
  const Bytes size = memory.rounded(400'000);
  memory.retag(tensor.storage(), Tag::Gradients);
  EXPECT_EQ(by_tag(Tag::Workspace), 0);
  EXPECT_EQ(by_tag(Tag::Gradients), size);
  memory.retag(tensor.storage(), Tag::Gradients);
  EXPECT_EQ(by_tag(Tag::Gradients), size);
  EXPECT_EQ(get(memory.stats().peak_by_tag, Tag::Gradients), get(before.by_tag, Tag::Gradients) + size);
  EXPECT_EQ(allocated(), size);
}

TEST_F(CpuMemoryTest, LeavesStoragesThatAreNotItsOwnAlone) {
  std::vector<std::byte> bytes(100);
  const c10::Storage foreign(c10::Storage::use_byte_size_t(), 100, c10::DataPtr(bytes.data(), c10::Device(c10::kCPU)));
  memory.retag(foreign, Tag::Weights);
  const at::Tensor empty = at::empty({0}, at::TensorOptions(at::kFloat));
  memory.retag(empty.storage(), Tag::Weights);
  EXPECT_EQ(memory.stats().by_tag, before.by_tag);
}

TEST_F(CpuMemoryTest, RemembersTheSplitByTagAtThePeak) {
  c10::DataPtr weights, activations;
  {
    const TagScope scope(Tag::Weights);
    weights = memory.allocate(1'000'000);
  }
  {
    const TagScope scope(Tag::Activations);
    activations = memory.allocate(3'000'000);
  }
  const Stats at_peak = memory.stats();
  activations = c10::DataPtr();
  {
    const TagScope scope(Tag::Gradients);
    activations = memory.allocate(1'000'000);
  }
  const Stats after = memory.stats();
  EXPECT_EQ(after.allocated_peak, at_peak.allocated);
  EXPECT_EQ(after.allocated_peak - before.allocated, memory.rounded(1'000'000) + memory.rounded(3'000'000));
  EXPECT_EQ(after.at_peak_by_tag, at_peak.by_tag);
  EXPECT_EQ(sum(after.at_peak_by_tag), after.allocated_peak);
  EXPECT_EQ(get(after.peak_by_tag, Tag::Gradients), get(before.by_tag, Tag::Gradients) + memory.rounded(1'000'000));
  memory.reset_peak();
  const Stats reset = memory.stats();
  EXPECT_EQ(reset.allocated_peak, reset.allocated);
  EXPECT_EQ(reset.at_peak_by_tag, reset.by_tag);
  EXPECT_EQ(reset.peak_by_tag, reset.by_tag);
  EXPECT_EQ(reset.mapped_peak, reset.mapped);
}

TEST_F(CpuMemoryTest, KeepsItsSumsUnderRandomUse) {
  constexpr std::uint64_t kSeed = 11;
  std::mt19937_64 engine(kSeed);
  std::vector<c10::DataPtr> live;
  Bytes peak = memory.stats().allocated;
  for (int i = 0; i < 3000; ++i) {
    const TagScope scope(static_cast<Tag>(engine() % kTags));
    if (engine() % 100 < 52) {
      live.push_back(memory.allocate(1 + engine() % (engine() % 2 == 0 ? 2000 : 200'000)));
    } else if (!live.empty()) {
      std::swap(live[engine() % live.size()], live.back());
      live.pop_back();
    }
    const Stats stats = memory.stats();
    peak = std::max(peak, stats.allocated);
    ASSERT_EQ(sum(stats.by_tag), stats.allocated) << "seed " << kSeed;
    ASSERT_EQ(sum(stats.at_peak_by_tag), stats.allocated_peak);
    ASSERT_EQ(stats.allocated_peak, peak);
    ASSERT_GE(stats.mapped_peak, stats.mapped);
  }
  live.clear();
  EXPECT_EQ(memory.stats().by_tag, before.by_tag);
}

TEST_F(CpuMemoryTest, TellsTheHighestLevelSinceItWasLastAsked) {
  const auto meter = memory.meter();
  memory.allocate(1_MiB);
  EXPECT_EQ(meter->take().all_at_once - before.allocated, memory.rounded(1_MiB));
  EXPECT_EQ(meter->take().all_at_once, before.allocated);
}

TEST_F(CpuMemoryTest, TheHighestLevelHasAllThreadsAtTheirOwnHighestAtOnce) {
  const auto meter = memory.meter();
  const auto scratch = [&](Bytes bytes) {
    std::thread([&, bytes] { memory.allocate(static_cast<std::size_t>(bytes)); }).join();
  };
  const c10::DataPtr kept = memory.allocate(2_MiB);
  const Bytes level = memory.stats().allocated;
  meter->take();
  scratch(1_MiB);
  scratch(3_MiB);
  memory.allocate(5_MiB);
  EXPECT_EQ(meter->take().all_at_once - level, memory.rounded(1_MiB) + memory.rounded(3_MiB) + memory.rounded(5_MiB));
  EXPECT_EQ(meter->take().all_at_once, level);
  // What it had in an earlier window counts there.
  c10::DataPtr mine = memory.allocate(4_MiB);
  meter->take();
  mine.clear();
  memory.allocate(3_MiB);
  EXPECT_EQ(meter->take().all_at_once - level, memory.rounded(4_MiB));
  scratch(1_MiB);
  EXPECT_EQ(meter->take().all_at_once - level, memory.rounded(1_MiB));
}

TEST_F(CpuMemoryTest, TheHighestLevelHasWhatWasEvictedStillThere) {
  const auto meter = memory.meter();
  c10::DataPtr evicted = memory.allocate(2_MiB);
  const Bytes level = memory.stats().allocated;
  meter->take();
  std::thread([&] {
    const c10::DataPtr scratch = memory.allocate(1_MiB);
    evicted.clear();
    meter->keep(memory.rounded(2_MiB));
    memory.allocate(3_MiB);
  }).join();
  EXPECT_EQ(meter->take().all_at_once - level, memory.rounded(1_MiB) + memory.rounded(3_MiB));
  EXPECT_EQ(meter->take().all_at_once, memory.stats().allocated);
}

TEST_F(CpuMemoryTest, SeveralMetersMeasureApart) {
  const auto first = memory.meter();
  memory.allocate(4_MiB);
  const auto second = memory.meter();
  const c10::DataPtr kept = memory.allocate(1_MiB);
  EXPECT_EQ(second->take().all_at_once - before.allocated, memory.rounded(1_MiB));
  EXPECT_EQ(first->take().all_at_once - before.allocated, memory.rounded(4_MiB))
      << "the other's take() ends no window of this one";
  memory.allocate(2_MiB);
  EXPECT_EQ(second->take().all_at_once, first->take().all_at_once);
}

TEST_F(CpuMemoryTest, SaysWhenThereAreTooManyMeters) {
  std::vector<std::unique_ptr<Meter>> meters;
  EXPECT_THROW(for (std::size_t i = 0; i <= HighWater::kMost; ++i) meters.push_back(memory.meter()), Error);
  meters.pop_back();
  EXPECT_NO_THROW(meters.push_back(memory.meter())) << "one that is gone makes room for another";
}

TEST_F(CpuMemoryTest, UsesFreedMemoryAgain) {
  void* first = memory.allocate(1_MiB).get();
  const Bytes mapped = memory.stats().mapped;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(memory.allocate(1_MiB).get(), first);
    EXPECT_EQ(memory.stats().mapped, mapped);
  }
}

TEST_F(CpuMemoryTest, TakesBackBlocksThatAnotherThreadFrees) {
  std::vector<c10::DataPtr> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(memory.allocate(1000 + 1000 * static_cast<std::size_t>(i)));
  EXPECT_GT(allocated(), 0);
  std::thread([&] { blocks.clear(); }).join();
  EXPECT_EQ(allocated(), 0);
}

TEST_F(CpuMemoryTest, ServesSeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937 engine(t);
      std::vector<std::pair<c10::DataPtr, std::size_t>> live;
      for (int i = 0; i < 2000; ++i) {
        const std::size_t bytes = 1 + engine() % 50'000;
        live.emplace_back(memory.allocate(bytes), bytes);
        std::memset(live.back().first.get(), static_cast<int>(t), bytes);
        if (live.size() > 20) {
          auto& [block, size] = live[engine() % live.size()];
          // Nobody else wrote into it.
          for (std::size_t k = 0; k < size; k += 997) ASSERT_EQ(static_cast<const unsigned char*>(block.get())[k], t);
          std::swap(live[engine() % live.size()], live.back());
          live.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocated(), 0);
}

TEST_F(CpuMemoryTest, GivesCachedMemoryBackToTheSystem) {
  constexpr Bytes kSize = 64_MiB;
  c10::DataPtr block = memory.allocate(static_cast<std::size_t>(kSize));
  void* address = block.get();
  std::memset(address, 1, static_cast<std::size_t>(kSize));
  const Bytes resident = process_memory().resident;
  block = c10::DataPtr();
  EXPECT_GE(memory.stats().mapped - before.mapped, kSize);
  EXPECT_GE(testing_support::resident_bytes(address, kSize), kSize);
  memory.release_cached();
  EXPECT_EQ(memory.stats().mapped, before.mapped);
  EXPECT_EQ(testing_support::resident_bytes(static_cast<std::byte*>(address) + 4096, kSize - 8192), 0);
  EXPECT_LT(process_memory().resident, resident - kSize + 8_MiB);
}

TEST(DeviceMemory, NamesADeviceWithoutABackend) {
  try {
    device_memory(c10::kXLA);
    FAIL() << "it was accepted";
  } catch (const UsageError& error) {
    std::string known;  // a GPU beside the CPU, where there is one
    for (const c10::Device& device : devices()) known += (known.empty() ? "" : ", ") + device.str();
    EXPECT_EQ(std::string(error.what()), "memory: no backend for xla here; devices with one: " + known);
  }
}

/// A tensor whose memory LibTorch's own allocator made, as before this one was installed.
at::Tensor older_tensor(std::int64_t bytes) {
  c10::Allocator* plain = c10::GetDefaultCPUAllocator();
  c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes),
                       plain->allocate(static_cast<std::size_t>(bytes)), plain, /*resizable=*/true);
  return at::empty({0}, at::kByte).set_(storage, 0, {bytes}, {1});
}

TEST_F(CpuMemoryTest, CountsWhatItAdoptsUntilItIsFreed) {
  at::Tensor old = older_tensor(1 << 20);
  old.fill_(7);
  EXPECT_EQ(memory.stats().allocated, before.allocated);
  memory.adopt(old.storage());
  memory.adopt(old.storage());
  EXPECT_EQ(memory.stats().allocated, before.allocated + (1 << 20));
  EXPECT_EQ(memory.stats().mapped - (1 << 20), before.mapped);
  EXPECT_EQ(old.sum().item<std::int64_t>(), 7 << 20);
  memory.retag(old.storage(), Tag::Optimizer);
  EXPECT_EQ(memory.stats().by_tag[static_cast<std::size_t>(Tag::Optimizer)],
            before.by_tag[static_cast<std::size_t>(Tag::Optimizer)] + (1 << 20));
  const at::Tensor view = old.narrow(0, 5, 10);
  old = at::Tensor();
  EXPECT_EQ(memory.stats().allocated, before.allocated + (1 << 20));
  EXPECT_EQ(view.sum().item<std::int64_t>(), 70);
}

TEST_F(CpuMemoryTest, WhatWasAdoptedAndIsFreedCountsNoMore) {
  const auto meter = memory.meter();
  at::Tensor old = older_tensor(2 << 20);
  memory.adopt(old.storage());
  old = at::Tensor();
  EXPECT_EQ(memory.stats().allocated, before.allocated);
  EXPECT_EQ(memory.stats().by_tag, before.by_tag);
  (void)at::empty({2 << 20}, at::kByte);
  EXPECT_EQ(meter->take().all_at_once - before.allocated, memory.rounded(2_MiB))
      << "one was gone before the other came";
}

TEST_F(CpuMemoryTest, WhatIsAdoptedTakesItsPartOfTheLimit) {
  memory.release_cached();
  memory.set_limit(memory.stats().mapped + (3 << 20));
  at::Tensor old = older_tensor(2 << 20);
  memory.adopt(old.storage());
  EXPECT_THROW(at::empty({2 << 20}, at::kByte), OutOfBudget);
  old = at::Tensor();
  EXPECT_NO_THROW(at::empty({2 << 20}, at::kByte));
  memory.set_limit(std::nullopt);
}

TEST_F(CpuMemoryTest, AdoptsNothingThatIsNotLibTorchs) {
  std::vector<std::uint8_t> bytes(1 << 16);
  const at::Tensor borrowed = at::from_blob(bytes.data(), {1 << 16}, at::kByte);
  memory.adopt(borrowed.storage());
  EXPECT_EQ(memory.stats().allocated, before.allocated);
  const at::Tensor ours = at::empty({1 << 16}, at::kByte);
  const Bytes with = memory.stats().allocated;
  memory.adopt(ours.storage());
  EXPECT_EQ(memory.stats().allocated, with);
}

}  // namespace
}  // namespace snug::memory
