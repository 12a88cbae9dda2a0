#include "snug/data/prefetcher.h"

#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <set>
#include <string>
#include <thread>

#include "snug/base/errors.h"
#include "snug/data/text_dataset.h"
#include "snug/memory/cpu_memory.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::HasSubstr;

/// A number for each step that takes a while, longer for some steps than for others.
std::int64_t worked_out(std::int64_t step) {
  std::uint64_t x = static_cast<std::uint64_t>(step) + 1;
  for (std::int64_t i = 0; i < step * 7919 % 20'000; ++i) x = x * 6364136223846793005ULL + 1;
  return static_cast<std::int64_t>(x >> 1U);
}

TEST(Prefetcher, GivesTheSameInOrderForAnyNumberOfWorkers) {
  for (const int workers : {0, 1, 3}) {
    for (const std::int64_t depth : {1, 2, 7}) {
      Prefetcher<std::int64_t> prefetcher(worked_out, {.workers = workers, .depth = depth});
      for (std::int64_t step = 0; step < 200; ++step) {
        EXPECT_EQ(prefetcher.step(), step);
        ASSERT_EQ(prefetcher.next(), worked_out(step)) << workers << " workers, depth " << depth;
      }
    }
  }
}

TEST(Prefetcher, ResumesAtAnyStepWithTheBatchItWouldHaveHad) {
  const TemporaryFolder folder("prefetcher");
  std::string text;
  for (int i = 0; i < 3000; ++i) text += std::to_string(i);
  const TextDataset dataset(TextCorpus::open(folder.write("t", text)), {.batch = 3, .sequence = 50, .seed = 4});
  const auto make = [&](std::int64_t step) { return dataset.train_batch(step); };
  for (const int workers : {0, 1, 3}) {
    Prefetcher<Batch> resumed(make, {.workers = workers, .depth = 3, .first_step = 37});
    for (std::int64_t step = 37; step < 60; ++step) {
      const Batch batch = resumed.next(), expected = dataset.train_batch(step);
      EXPECT_TRUE(at::equal(batch.input, expected.input));
      EXPECT_TRUE(at::equal(batch.target, expected.target));
    }
  }
}

/// Counts how many of it there are.
struct Counted {
  static inline std::atomic<std::int64_t> alive = 0;
  Counted() { ++alive; }
  Counted(Counted&& /*other*/) noexcept { ++alive; }
  ~Counted() { --alive; }
};

TEST(Prefetcher, NeverHoldsMoreThanItsDepth) {
  for (const int workers : {1, 4}) {
    for (const std::int64_t depth : {1, 3}) {
      constexpr std::int64_t kTaken = 300;
      std::atomic<std::int64_t> begun = 0, handed_out = 0, most = 0;
      std::latch all(kTaken + depth);
      Prefetcher<Counted> prefetcher(
          [&](std::int64_t /*step*/) {
            const std::int64_t ahead = ++begun - handed_out;
            for (std::int64_t seen = most; seen < ahead && !most.compare_exchange_weak(seen, ahead);) {
            }
            if (all.try_wait()) {
              ADD_FAILURE() << "one more than there is room for";
            } else {
              all.count_down();
            }
            return Counted();
          },
          {.workers = workers, .depth = depth});
      for (std::int64_t i = 0; i < kTaken; ++i) {
        // Counted before it is taken: a worker may begin the next one at once.
        ++handed_out;
        (void)prefetcher.next();
      }
      all.wait();  // nobody takes any more, and the workers fill all the room there is
      EXPECT_EQ(most, depth);
      EXPECT_EQ(begun, kTaken + depth);
    }
  }
  EXPECT_EQ(Counted::alive, 0);
}

TEST(Prefetcher, ComputesAheadUpToItsDepthAndThenWaits) {
  std::atomic<std::int64_t> begun = 0;
  std::latch three(3);
  Prefetcher<std::int64_t> prefetcher(
      [&](std::int64_t step) {
        if (++begun <= 3) three.count_down();
        return step;
      },
      {.workers = 2, .depth = 3});
  three.wait();  // without anyone calling next()
  EXPECT_EQ(begun, 3);
  EXPECT_EQ(prefetcher.next(), 0);
}

TEST(Prefetcher, ThrowsAtTheStepItBelongsTo) {
  const auto make = [](std::int64_t step) {
    if (step == 5 || step == 6) throw UsageError("step " + std::to_string(step));
    return step;
  };
  for (const int workers : {0, 1, 3}) {
    Prefetcher<std::int64_t> prefetcher(make, {.workers = workers, .depth = 4});
    for (std::int64_t step = 0; step < 5; ++step) EXPECT_EQ(prefetcher.next(), step);
    for (const char* expected : {"step 5", "step 6"}) {
      try {
        (void)prefetcher.next();
        FAIL();
      } catch (const UsageError& error) {
        EXPECT_STREQ(error.what(), expected);
      }
    }
    EXPECT_EQ(prefetcher.next(), 7);
  }
}

TEST(Prefetcher, EndsWithBatchesThatNobodyTook) {
  for (int round = 0; round < 50; ++round) {
    Prefetcher<std::int64_t> prefetcher(worked_out, {.workers = 3, .depth = 5});
    for (int i = 0; i < round % 4; ++i) (void)prefetcher.next();
  }
}

TEST(Prefetcher, WorksInThreadsOfItsOwnOrInTheCallers) {
  for (const int workers : {0, 2}) {
    Prefetcher<std::thread::id> prefetcher([](std::int64_t /*step*/) { return std::this_thread::get_id(); },
                                           {.workers = workers});
    std::set<std::thread::id> threads;
    for (int i = 0; i < 20; ++i) threads.insert(prefetcher.next());
    EXPECT_EQ(threads.contains(std::this_thread::get_id()), workers == 0);
  }
}

TEST(Prefetcher, CountsWhatWaitsAsStaging) {
  auto& memory = memory::CpuMemory::instance();
  const auto staging = [&] { return memory.stats().by_tag[static_cast<std::size_t>(memory::Tag::Staging)]; };
  const Bytes before = staging();
  constexpr std::int64_t kFloats = 100'000;
  for (const int workers : {0, 1, 2}) {
    std::latch two(2);
    std::atomic<int> made = 0;
    Prefetcher<at::Tensor> prefetcher(
        [&](std::int64_t step) {
          at::Tensor batch = at::full({kFloats}, static_cast<double>(step), at::kFloat);
          if (++made <= 2) two.count_down();
          return batch;
        },
        {.workers = workers, .depth = 2});
    if (workers > 0) two.wait();
    const Bytes ahead = staging() - before;
    EXPECT_GE(ahead, workers > 0 ? 2 * kFloats * 4 : 0);
    EXPECT_LE(ahead, workers > 0 ? 2 * (kFloats * 4 + 8192) : 0);
    const at::Tensor first = prefetcher.next();
    EXPECT_EQ(first[0].item<double>(), 0);
    EXPECT_GE(staging() - before, kFloats * 4);
  }
  EXPECT_EQ(staging(), before);
}

TEST(Prefetcher, PinsWhereThereIsAnAccelerator) {
  const bool has_one = at::globalContext().hasCUDA();
  for (const int workers : {0, 1}) {
    Prefetcher<at::Tensor> prefetcher([](std::int64_t step) { return at::full({4}, step, at::kLong); },
                                      {.workers = workers, .pinned = true});
    const at::Tensor batch = prefetcher.next();
    EXPECT_EQ(batch.is_pinned(), has_one);
    EXPECT_EQ(batch[0].item<std::int64_t>(), 0);
  }
}

TEST(Prefetcher, RefusesOptionsOutOfRange) {
  const auto fault = [](const PrefetcherOptions& options) -> std::string {
    try {
      const Prefetcher<std::int64_t> prefetcher([](std::int64_t step) { return step; }, options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(fault({.workers = -1}), HasSubstr("workers = -1"));
  EXPECT_THAT(fault({.depth = 0}), HasSubstr("depth = 0"));
  EXPECT_THAT(fault({.first_step = -1}), HasSubstr("first_step = -1"));
}

}  // namespace
}  // namespace snug::data
