#include "snug/record/tape_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace snug::record {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSoon{20};
constexpr milliseconds kLong{10'000};

/// What `ask` says on another thread.
template <class Ask>
bool elsewhere(const Ask& ask) {
  return std::async(std::launch::async, ask).get();
}

bool tries(TapeMutex& mutex) {
  return elsewhere([&] {
    const bool got = mutex.try_lock();
    if (got) mutex.unlock();
    return got;
  });
}

bool evicts(TapeMutex& mutex) {
  return elsewhere([&] {
    const bool got = mutex.try_lock_to_evict_for(kSoon);
    if (got) mutex.unlock();
    return got;
  });
}

TEST(TapeMutex, IsRecursiveAndKeepsOthersOut) {
  TapeMutex mutex;
  mutex.lock();
  mutex.lock();
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_TRUE(mutex.try_lock_to_evict_for(kSoon));
  for (int held = 4; held > 0; --held) {
    EXPECT_FALSE(tries(mutex));
    EXPECT_FALSE(evicts(mutex));
    mutex.unlock();
  }
  EXPECT_TRUE(tries(mutex));
  EXPECT_TRUE(evicts(mutex));
}

TEST(TapeMutex, LentItAdmitsEvictionsAndItsHolderOnly) {
  TapeMutex mutex;
  const std::lock_guard outer(mutex);
  const std::lock_guard inner(mutex);
  {
    const TapeMutex::Lent lent(mutex);
    EXPECT_FALSE(tries(mutex));
    EXPECT_TRUE(evicts(mutex));
    {
      const std::lock_guard again(mutex);  // the holder, in the middle of something
      EXPECT_FALSE(evicts(mutex));
      const TapeMutex::Lent nested(mutex);
      EXPECT_TRUE(evicts(mutex));
      EXPECT_FALSE(tries(mutex));
    }
    EXPECT_TRUE(evicts(mutex));
  }
  EXPECT_FALSE(evicts(mutex));
}

TEST(TapeMutex, TheHolderWaitsForAnEviction) {
  TapeMutex mutex;
  const std::lock_guard lock(mutex);
  std::atomic<bool> evicting = false, evicted = false;
  std::thread other;
  {
    const TapeMutex::Lent lent(mutex);
    other = std::thread([&] {
      ASSERT_TRUE(mutex.try_lock_to_evict_for(kLong));
      evicting = true;
      mutex.lock();  // as what it calls may
      std::this_thread::sleep_for(kSoon);
      mutex.unlock();
      evicted = true;
      mutex.unlock();
    });
    while (!evicting) std::this_thread::yield();
  }
  EXPECT_TRUE(evicted);
  other.join();
}

TEST(TapeMutex, AnEvictionWaitsUntilItIsLent) {
  TapeMutex mutex;
  const std::lock_guard lock(mutex);
  auto other = std::async(std::launch::async, [&] {
    const bool got = mutex.try_lock_to_evict_for(kLong);
    if (got) mutex.unlock();
    return got;
  });
  EXPECT_EQ(other.wait_for(kSoon), std::future_status::timeout);
  const TapeMutex::Lent lent(mutex);
  EXPECT_TRUE(other.get());
}

TEST(TapeMutex, ThreadsTakeTurns) {
  TapeMutex mutex;
  int shared = 0;
  const auto work = [&](bool evict) {
    for (int i = 0; i < 2'000; ++i) {
      if (evict) {
        ASSERT_TRUE(mutex.try_lock_to_evict_for(kLong));
        ++shared;
        mutex.unlock();
      } else {
        const std::lock_guard lock(mutex);
        ++shared;
        const TapeMutex::Lent lent(mutex);
        const std::lock_guard again(mutex);
        ++shared;
      }
    }
  };
  std::thread a(work, false), b(work, true), c(work, false);
  a.join();
  b.join();
  c.join();
  EXPECT_EQ(shared, 10'000);
}

}  // namespace
}  // namespace snug::record
