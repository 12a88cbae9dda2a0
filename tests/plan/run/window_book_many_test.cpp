// Windows of so many tensors that not all of them are looked at.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/plan/run/window_uses.h"

namespace snug::plan {
namespace {

using synthetic::brought_in;
using synthetic::Order;
using synthetic::reads;
using synthetic::use;

TEST(WindowBook, OfManyOfOneSizeTheOneLeavesThatIsUsedLast) {
  constexpr int kTensors = 900, kPlaces = 600;
  std::mt19937 random(3);
  Order order;
  for (int i = 0; i < 6000; ++i) order.push_back(std::uniform_int_distribution(0, kTensors - 1)(random));
  for (int i = 0; i < kTensors; ++i) order.push_back(i);  // no next step: what is used no more leaves first
  WindowBook book({kPlaces * 10});
  for (int i = 0; i < kTensors; ++i) book.add(10);
  book.expect(reads(order));
  const int brought = brought_in(book, order, 1);
  // Belady's rule, by looking at all of them.
  std::vector<std::vector<std::size_t>> uses(kTensors);
  for (std::size_t i = 0; i < order.size(); ++i) uses[static_cast<std::size_t>(order[i])].push_back(i);
  std::set<std::pair<std::size_t, StreamedId>> inside;  // by next use
  const auto next = [&](StreamedId t, std::size_t now) {
    const auto& all = uses[static_cast<std::size_t>(t)];
    const auto use = std::ranges::upper_bound(all, now);
    return use != all.end() ? *use : order.size() + all.front();
  };
  int least = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (inside.erase({i, order[i]}) == 0) {
      ++least;
      if (inside.size() == kPlaces) inside.erase(std::prev(inside.end()));
    }
    inside.insert({next(order[i], i), order[i]});
  }
  EXPECT_EQ(brought, least);
}

/// As the matrices of a mixture of experts: minutes where each use looked at all uses and all that are inside.
TEST(WindowBook, AUseOfManyTakesNoLongerThanOneOfFew) {
  constexpr int kTensors = 30'000;
  Order order;
  for (int i = 0; i < kTensors; ++i) order.push_back(i);
  for (int i = kTensors; i-- > 0;) order.push_back(i);
  for (const Window window : {Window{(kTensors - 1) * 10}, Window{(kTensors - 1) * 10, kTensors * 5}}) {
    WindowBook book(window);
    for (int i = 0; i < kTensors; ++i) book.add(10);
    book.expect(reads(order));
    const auto began = std::chrono::steady_clock::now();
    int brought = 0;
    for (int step = 0; step < 3; ++step) {
      book.restart();
      for (const StreamedId tensor : order) {
        brought += use(book, tensor) ? 1 : 0;
        while (book.bring_ahead()) ++brought;
      }
    }
    EXPECT_GE(brought, kTensors);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
    for (StreamedId tensor = 0; tensor < kTensors; ++tensor) book.remove(tensor);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(25));
  }
}

TEST(WindowBook, NeverHasTwoInOnePlaceOfManyEither) {
  std::mt19937 random(11);
  for (const Bytes rotating : {0, 1000, 2000}) {
    const auto pick = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
    constexpr int kTensors = 1500;
    WindowBook book({3000, rotating});
    for (int i = 0; i < kTensors; ++i) book.add(pick(1, 9));
    Order order;
    for (int i = 0; i < 4000; ++i) order.push_back(pick(0, kTensors - 1));
    book.expect(reads(order));
    for (int i = 0; i < 6000; ++i) {
      const StreamedId tensor =
          pick(0, 3) > 0 ? order[static_cast<std::size_t>(i) % order.size()] : pick(0, kTensors - 1);
      if (pick(0, 500) == 0) book.restart();
      (void)use(book, tensor);
      while (pick(0, 2) > 0 && book.bring_ahead()) {
      }
      if (i % 100 != 0) continue;
      std::map<Bytes, Bytes> places;
      for (StreamedId t = 0; t < kTensors; ++t) {
        if (!book.inside(t)) continue;
        ASSERT_TRUE(places.emplace(book.offset(t), book.bytes(t)).second);
      }
      Bytes end = 0;
      for (const auto& [offset, bytes] : places) {
        ASSERT_GE(offset, end);
        end = offset + bytes;
      }
      ASSERT_LE(end, 3000);
      ASSERT_TRUE(i < 2000 || places.size() > 300U);
    }
  }
}

}  // namespace
}  // namespace snug::plan
