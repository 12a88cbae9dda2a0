// Who is missing when a collective has failed.
#include "snug/parallel/roll_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

namespace snug::parallel {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::IsEmpty;

/// Counts what is asked of it.
class CountingStore final : public c10d::HashStore {
 public:
  using c10d::HashStore::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    ++requests;
    HashStore::set(key, value);
  }
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    ++requests;
    return HashStore::compareSet(key, expected, desired);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    ++requests;
    return HashStore::get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    ++requests;
    return HashStore::check(keys);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    ++requests;
    HashStore::wait(keys, timeout);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override {
    ++requests;
    return HashStore::add(key, value);
  }
  std::atomic<int> requests = 0;
};

/// The same store for a process whose requests take their time.
class SlowStore final : public c10d::HashStore {
 public:
  using c10d::HashStore::set;
  explicit SlowStore(c10::intrusive_ptr<c10d::HashStore> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    std::this_thread::sleep_for(300ms);
    store_->set(key, value);
  }
  std::vector<std::uint8_t> compareSet(const std::string& key, const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override {
    return store_->compareSet(key, expected, desired);
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    std::this_thread::sleep_for(300ms);
    return store_->get(key);
  }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(keys, timeout);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override { return store_->add(key, value); }

 private:
  c10::intrusive_ptr<c10d::HashStore> store_;
};

std::vector<int> ranks_below(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// What all but some of `count` processes find, each a thread.
std::vector<std::string> found_by_others(const c10::intrusive_ptr<CountingStore>& store, int count,
                                         const std::vector<int>& missing, std::chrono::milliseconds patience) {
  std::vector<std::future<std::string>> each;
  for (const int rank : ranks_below(count)) {
    if (std::ranges::find(missing, rank) != missing.end()) continue;
    each.push_back(
        std::async(std::launch::async, [=] { return RollCall(store, rank, patience).missing(ranks_below(count)); }));
  }
  std::vector<std::string> found;
  for (auto& one : each) found.push_back(one.get());
  return found;
}

TEST(RollCall, AllFindTheSameOnesMissing) {
  const auto store = c10::make_intrusive<CountingStore>();
  RollCall(store, 2, 1s).doing("in step 7");
  EXPECT_THAT(found_by_others(store, 4, {2}, 300ms), Each("the process of rank 2 (in step 7) has"));
  EXPECT_THAT(found_by_others(c10::make_intrusive<CountingStore>(), 5, {1, 3}, 300ms),
              Each("the processes of ranks 1, 3 have"));
  EXPECT_THAT(found_by_others(c10::make_intrusive<CountingStore>(), 3, {}, 300ms), Each(IsEmpty()));
}

TEST(RollCall, DoesNotWaitForThoseThatHaveLeft) {
  const auto store = c10::make_intrusive<CountingStore>();
  RollCall(store, 1, 1s).leave();
  const auto began = std::chrono::steady_clock::now();
  EXPECT_THAT(found_by_others(store, 3, {1}, 20s), Each("the process of rank 1 has"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, 10s);
}

/// As the end of a group must not wait.
TEST(RollCall, LeavesWithoutWaitingForTheStore) {
  const auto store = c10::make_intrusive<CountingStore>();
  const auto slow = c10::make_intrusive<SlowStore>(store);
  const auto began = std::chrono::steady_clock::now();
  RollCall(slow, 1, 1s).begin_to_leave();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 250ms);
  EXPECT_THAT(found_by_others(store, 3, {1}, 20s), Each("the process of rank 1 has"));
}

TEST(RollCall, OneThatNoticesLateFindsOthersAndNotItself) {
  const auto store = c10::make_intrusive<CountingStore>();
  EXPECT_THAT(found_by_others(store, 4, {1, 2}, 100ms), Each("the processes of ranks 1, 2 have"));
  EXPECT_EQ(RollCall(store, 1, 100ms).missing(ranks_below(4)), "the process of rank 2 has");
}

/// The store may end with the process of rank 0.
TEST(RollCall, TheFirstRankStaysUntilAllHaveRead) {
  const auto store = c10::make_intrusive<CountingStore>();
  const auto slow = c10::make_intrusive<SlowStore>(store);
  auto other = std::async(std::launch::async, [&] { return RollCall(slow, 2, 2s).missing({0, 1, 2}); });
  RollCall(store, 1, 2s).leave();
  EXPECT_EQ(RollCall(store, 0, 2s).missing({0, 1, 2}), "the process of rank 1 has");
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(other.get(), "the process of rank 1 has");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 100ms) << "the first rank returned before the other had read";
}

/// One that has noticed and is stopped before it reads is not waited for without end.
TEST(RollCall, TheFirstRankStaysNoLongerThanItsPatience) {
  const auto store = c10::make_intrusive<CountingStore>();
  RollCall(store, 1, 1s).leave();
  store->set("roll/noticed/2", std::vector<std::uint8_t>{'1'});
  store->set("roll/present/2", std::vector<std::uint8_t>{'1'});
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(RollCall(store, 0, 1s).missing({0, 1, 2}), "the process of rank 1 has");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 2s);
}

TEST(RollCall, TakesAFewRequestsForEachProcess) {
  constexpr int kProcesses = 256;
  const auto store = c10::make_intrusive<CountingStore>();
  EXPECT_THAT(found_by_others(store, kProcesses, {200}, 2s), Each("the process of rank 200 has"));
  EXPECT_LT(store->requests, 8 * kProcesses);
}

}  // namespace
}  // namespace snug::parallel
