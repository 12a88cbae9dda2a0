// The hard limit of the CPU's allocator, what happens before it refuses, and what it says when it does.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "snug/memory/awaited_frees.h"
#include "snug/memory/cpu_memory.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/process_memory.h"

namespace snug::memory {
namespace {

class Handler final : public PressureHandler {
 public:
  Handler(DeviceMemory& memory, std::function<bool(Bytes)> make_room)
      : memory_(memory), make_room_(std::move(make_room)) {
    memory_.add_pressure_handler(this);
  }
  ~Handler() override { memory_.remove_pressure_handler(this); }
  bool make_room(Bytes bytes, Patience patience) noexcept override {
    if (patience == Patience::AMoment) return false;
    asked.push_back(bytes);
    return make_room_(bytes);
  }
  std::vector<Bytes> asked;

 private:
  DeviceMemory& memory_;
  std::function<bool(Bytes)> make_room_;
};

class CpuMemoryLimit : public ::testing::Test {
 protected:
  void SetUp() override {
    memory.release_cached();
    before = memory.stats();
  }
  void TearDown() override {
    memory.set_limit(std::nullopt);
    EXPECT_EQ(memory.stats().allocated, before.allocated);
  }
  /// A limit that leaves this much.
  void leave(Bytes bytes) { memory.set_limit(memory.stats().mapped + bytes); }
  c10::DataPtr block(Bytes bytes) { return memory.allocate(static_cast<std::size_t>(bytes - 64)); }

  CpuMemory& memory = CpuMemory::instance();
  Stats before;
};

TEST_F(CpuMemoryLimit, HandsOutTheLastByteAndNoMore) {
  leave(10_MiB);
  const c10::DataPtr a = block(9_MiB), b = block(1_MiB);
  const Stats full = memory.stats();
  EXPECT_EQ(full.mapped, full.limit);
  EXPECT_THROW(block(36_KiB), OutOfBudget);
  const Stats refused = memory.stats();
  EXPECT_EQ(refused.mapped, full.mapped);
  EXPECT_EQ(refused.allocated, full.allocated);
  EXPECT_EQ(refused.allocations, full.allocations);
}

TEST_F(CpuMemoryLimit, GoesOnAfterARefusal) {
  leave(10_MiB);
  c10::DataPtr a = block(10_MiB);
  EXPECT_THROW(at::empty({1'000'000}, at::TensorOptions(at::kFloat)), OutOfBudget);
  a = c10::DataPtr();
  const at::Tensor tensor = at::empty({1'000'000}, at::TensorOptions(at::kFloat));
  EXPECT_EQ(memory.stats().allocated - before.allocated, memory.rounded(4'000'000));
}

TEST_F(CpuMemoryLimit, TellsWhoAskedForWhatAndWhatIsThere) {
  leave(10_MiB);
  const TagScope tag(Tag::Activations);
  const c10::DataPtr a = block(1_MiB), b = block(5_MiB);
  const std::string name = "aten::addmm";
  const OperationScope operation(&name);
  try {
    block(5_MiB);
    FAIL() << "it fits";
  } catch (const OutOfBudget& error) {
    const auto& d = error.details();
    EXPECT_EQ(d.requested, 5_MiB);
    EXPECT_EQ(d.operation, "aten::addmm");
    EXPECT_EQ(d.stats.limit, memory.stats().limit);
    EXPECT_EQ(d.stats.allocated, before.allocated + 6_MiB);
    ASSERT_GE(d.largest.size(), 2U);
    EXPECT_LE(d.largest.size(), 5U);
    EXPECT_EQ(d.largest[0], (std::pair{5_MiB, Tag::Activations}));
    EXPECT_EQ(d.largest[1], (std::pair{1_MiB, Tag::Activations}));
    EXPECT_EQ(error.exit_code(), 1);
    EXPECT_FALSE(d.in_step);
    EXPECT_NE(std::string(error.what()).find("aten::addmm asked for 5.0 MiB"), std::string::npos) << error.what();
  }
}

TEST_F(CpuMemoryLimit, AsksForRoomBeforeItRefusesAndTriesAgain) {
  leave(10_MiB);
  std::vector<c10::DataPtr> cache;
  for (int i = 0; i < 10; ++i) cache.push_back(block(1_MiB));
  Handler handler(memory, [&](Bytes) {
    if (cache.empty()) return false;
    cache.pop_back();
    return true;
  });
  // A block at a time until there are three together.
  const c10::DataPtr big = block(3_MiB);
  EXPECT_EQ(handler.asked, (std::vector<Bytes>{3_MiB, 2_MiB, 1_MiB}));
  EXPECT_EQ(cache.size(), 7U);
  EXPECT_EQ(memory.stats().pressure_calls - before.pressure_calls, 3);
  EXPECT_EQ(memory.stats().mapped, memory.stats().limit);
}

TEST_F(CpuMemoryLimit, RefusesWhenNoHandlerFreesAnything) {
  leave(1_MiB);
  Handler idle(memory, [](Bytes) { return false; });
  Handler other(memory, [](Bytes) { return false; });
  try {
    block(2_MiB);
    ADD_FAILURE() << "it fits";
  } catch (const OutOfBudget& error) {
    EXPECT_TRUE(error.details().in_step);
  }
  EXPECT_EQ(idle.asked, std::vector<Bytes>{1_MiB});
  EXPECT_EQ(other.asked, std::vector<Bytes>{1_MiB});
}

TEST_F(CpuMemoryLimit, AsksTheNewestHandlerFirstAndForgetsThoseThatLeft) {
  leave(2_MiB);
  c10::DataPtr cached = block(2_MiB);
  Handler oldest(memory, [](Bytes) { return false; });
  Handler middle(memory, [&](Bytes) {
    cached = c10::DataPtr();
    return true;
  });
  Handler newest(memory, [](Bytes) { return false; });
  {
    Handler gone(memory, [](Bytes) {
      ADD_FAILURE() << "asked after it left";
      return false;
    });
  }
  const c10::DataPtr a = block(2_MiB);
  EXPECT_EQ(newest.asked.size(), 1U);
  EXPECT_EQ(middle.asked.size(), 1U);
  EXPECT_TRUE(oldest.asked.empty());
}

TEST_F(CpuMemoryLimit, AsksNobodyWhileItFits) {
  leave(2_MiB);
  Handler handler(memory, [](Bytes) { return false; });
  // Cached memory of other sizes makes room by itself, and so do empty segments of small blocks.
  block(2_MiB);
  memory.allocate(100);
  block(2_MiB);
  EXPECT_TRUE(handler.asked.empty());
}

TEST_F(CpuMemoryLimit, AcceptsALimitUnderWhatIsAllocatedAndWaitsUntilEnoughIsFreed) {
  c10::DataPtr a = block(8_MiB), b = block(4_MiB);
  memory.set_limit(before.mapped + 6_MiB);
  EXPECT_THROW(block(1_MiB), OutOfBudget);
  a = c10::DataPtr();
  EXPECT_LE(memory.stats().mapped, *memory.stats().limit);
  const c10::DataPtr c = block(2_MiB);
  EXPECT_LE(memory.stats().mapped, *memory.stats().limit);
  EXPECT_THROW(block(1_MiB), OutOfBudget);
}

TEST_F(CpuMemoryLimit, ReturnsCachedMemoryWhenTheLimitComesDown) {
  block(8_MiB);
  ASSERT_GE(memory.stats().mapped - before.mapped, 8_MiB);
  memory.set_limit(before.mapped + 1_MiB);
  EXPECT_LE(memory.stats().mapped, before.mapped + 1_MiB);
}

TEST_F(CpuMemoryLimit, IsNeverPassedUnderRandomUseNeitherByTheCountNorByTheSystem) {
  constexpr Bytes kRoom = 96_MiB;
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 engine(seed);
    memory.set_limit(std::nullopt);
    memory.release_cached();
    leave(kRoom);
    [[maybe_unused]] const Bytes resident = process_memory().resident;
    std::vector<c10::DataPtr> live;
    int refused = 0;
    for (int i = 0; i < 3000; ++i) {
      if (engine() % 100 < 55) {
        const std::size_t most = engine() % 4 == 0 ? (8U << 20) : engine() % 2 == 0 ? (300U << 10) : 4000;
        const std::size_t bytes = 1 + engine() % most;
        try {
          live.push_back(memory.allocate(bytes));
          std::memset(live.back().get(), 1, bytes);
        } catch (const OutOfBudget&) {
          ++refused;
          for (int k = 0; k < 20 && !live.empty(); ++k) live.pop_back();
        }
      } else if (!live.empty()) {
        std::swap(live[engine() % live.size()], live.back());
        live.pop_back();
      }
      const Stats stats = memory.stats();
      ASSERT_LE(stats.mapped, *stats.limit);
      ASSERT_LE(stats.allocated, stats.mapped);
#if !defined(__SANITIZE_THREAD__)  // which keeps several bytes for each that is touched
      if (i % 200 == 0) {
        ASSERT_LE(process_memory().resident - resident, kRoom + 8_MiB);
      }
#endif
    }
    EXPECT_GT(refused, 5);
  }
}

TEST_F(CpuMemoryLimit, RefusesWhatNoMachineHasWithoutALimit) {
  for (const std::size_t bytes : {std::size_t{1} << 43, std::size_t{1} << 62, SIZE_MAX / 2, SIZE_MAX - 63, SIZE_MAX}) {
    EXPECT_THROW(memory.allocate(bytes), OutOfBudget) << bytes;
  }
}

TEST_F(CpuMemoryLimit, RefusesWhatTheMachineCannotHoldWithoutALimit) {
  const std::optional<Bytes> most = memory_and_swap();
  if (!most) GTEST_SKIP() << "the system promises any amount";
  ASSERT_GE(*most, process_memory().resident);
  // Not filled: takes no memory, and is allowed as with LibTorch's own allocator.
  const c10::DataPtr first = block(*most * 3 / 5), second = block(*most * 3 / 5);
  try {
    (void)block(*most + 1_GiB);
    FAIL() << "was handed out";
  } catch (const OutOfBudget& error) {
    EXPECT_FALSE(error.details().stats.limit);
    EXPECT_EQ(error.details().machine, most);
  }
  EXPECT_NE(first.get(), second.get());
}

TEST_F(CpuMemoryLimit, AsksOnTheThreadThatAllocates) {
  leave(1_MiB);
  std::thread::id asked_on;
  Handler handler(memory, [&](Bytes) {
    asked_on = std::this_thread::get_id();
    return false;
  });
  std::thread::id other;
  std::thread([&] {
    other = std::this_thread::get_id();
    EXPECT_THROW(block(2_MiB), OutOfBudget);
  }).join();
  EXPECT_EQ(asked_on, other);
}

/// Threads of process groups have tensors until somewhat after a collective is over.
TEST_F(CpuMemoryLimit, IsWaitedForWhileAnotherThreadLetsGo) {
  const AwaitedFrees awaited(memory);
  leave(10_MiB);
  std::optional<c10::DataPtr> held = block(10_MiB);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    held.reset();
  });
  const c10::DataPtr found = block(8_MiB);
  other.join();
  EXPECT_NE(found.get(), nullptr);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THROW(block(8_MiB), OutOfBudget) << "nobody does";
  const auto waited = std::chrono::steady_clock::now() - began;
  EXPECT_GE(waited, std::chrono::milliseconds(50));
}

}  // namespace
}  // namespace snug::memory
