// Who meets at a store that outlives processes, as torchrun's does when it starts them again.
#include "snug/parallel/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "snug/base/errors.h"

namespace snug::parallel {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Threads that stand for processes.
class Meeting : public ::testing::Test {
 protected:
  std::future<std::string> comes(int rank, std::chrono::milliseconds timeout = 20s) {
    return std::async(std::launch::async, [this, rank, timeout] { return meet_at(*store_, rank, kSize, timeout); });
  }
  /// All of them; where they have met.
  std::string all_come() {
    std::vector<std::future<std::string>> each;
    for (int rank = kSize - 1; rank >= 0; --rank) each.push_back(comes(rank));
    return all_met(std::move(each));
  }
  static std::string all_met(std::vector<std::future<std::string>> each) {
    std::set<std::string> places;
    for (auto& one : each) places.insert(one.get());
    EXPECT_EQ(places.size(), 1U);
    return *places.begin();
  }
  static void fails_with(std::future<std::string> one, const std::string& why) {
    EXPECT_THAT([&] { (void)one.get(); }, ThrowsMessage<Error>(HasSubstr(why)));
  }

  static constexpr int kSize = 3;
  c10::intrusive_ptr<c10d::HashStore> store_ = c10::make_intrusive<c10d::HashStore>();
};

TEST_F(Meeting, EachOneHasAPlaceOfItsOwn) {
  std::set<std::string> places;
  for (int i = 0; i < 5; ++i) places.insert(all_come());
  EXPECT_EQ(places.size(), 5U);
}

TEST_F(Meeting, NamesThoseThatDoNotCome) {
  auto first = comes(0, 200ms), second = comes(1, 400ms);
  fails_with(std::move(first), "rank 2 did not come");
  fails_with(std::move(second), "rank 0 has waited for others");
  fails_with(comes(2, 100ms), "rank 0 has waited for others");
  c10d::HashStore empty;
  EXPECT_THAT([&] { (void)meet_at(empty, 1, kSize, 100ms); }, ThrowsMessage<Error>(HasSubstr("rank 0 did not come")));
}

TEST_F(Meeting, ComesAboutAfterOneHasDiedBeforeIt) {
  for (int died = 0; died < kSize; ++died) {
    std::vector<std::future<std::string>> early;
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank != died) early.push_back(comes(rank, 100ms));
    }
    for (auto& one : early) EXPECT_ANY_THROW(one.get()) << died;
    (void)all_come();
  }
}

TEST_F(Meeting, IsOfTheNextCallForThoseThatAnsweredOneThatFailed) {
  std::vector<std::future<std::string>> each;
  each.push_back(comes(1));  // and is not started again
  EXPECT_ANY_THROW(comes(0, 200ms).get());
  each.push_back(comes(0));
  each.push_back(comes(2));
  (void)all_met(std::move(each));
}

TEST_F(Meeting, IsOfTheLastOfSeveralProcessesOfOneRank) {
  std::vector<std::future<std::string>> each;
  each.push_back(comes(0));
  std::future<std::string> dies = comes(1, 300ms);
  EXPECT_ANY_THROW(dies.get());
  each.push_back(comes(1));
  std::this_thread::sleep_for(100ms);
  each.push_back(comes(2));
  (void)all_met(std::move(each));
}

TEST_F(Meeting, IsNotOfAProcessThatComesToOneOfOthers) {
  (void)all_come();
  std::vector<std::future<std::string>> each;
  each.push_back(comes(1));  // finds the call before, which is over
  std::this_thread::sleep_for(100ms);
  each.push_back(comes(2));
  each.push_back(comes(0));
  (void)all_met(std::move(each));
}

}  // namespace
}  // namespace snug::parallel
