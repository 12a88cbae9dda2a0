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
  std::atomic<int> requests = 0;
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

TEST(RollCall, OneThatNoticesLateFindsOthersAndNotItself) {
  const auto store = c10::make_intrusive<CountingStore>();
  EXPECT_THAT(found_by_others(store, 4, {1, 2}, 100ms), Each("the processes of ranks 1, 2 have"));
  EXPECT_EQ(RollCall(store, 1, 100ms).missing(ranks_below(4)), "the process of rank 2 has");
}

TEST(RollCall, TakesAFewRequestsForEachProcess) {
  constexpr int kProcesses = 256;
  const auto store = c10::make_intrusive<CountingStore>();
  EXPECT_THAT(found_by_others(store, kProcesses, {200}, 2s), Each("the process of rank 200 has"));
  EXPECT_LT(store->requests, 7 * kProcesses);
}

}  // namespace
}  // namespace snug::parallel
