#include "snug/plan/run/window_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/plan/run/window_uses.h"

namespace snug::plan {
namespace {

using synthetic::brought_in;
using synthetic::leaving;
using synthetic::Order;
using synthetic::reads;
using synthetic::use;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Optional;
using ::testing::UnorderedElementsAre;
TEST(WindowBook, PlacesTensorsSideBySideAndLetsTheOneLeaveThatWasUsedFirst) {
  WindowBook book({100});
  const StreamedId a = book.add(60), b = book.add(40), c = book.add(40), d = book.add(60);
  EXPECT_THAT(use(book, a), Optional(ElementsAre()));
  EXPECT_THAT(use(book, b), Optional(ElementsAre()));
  EXPECT_EQ(book.offset(a), 0);
  EXPECT_EQ(book.offset(b), 60);
  EXPECT_THAT(use(book, c), Optional(ElementsAre(a)));
  EXPECT_EQ(use(book, b), std::nullopt) << "inside already";
  EXPECT_THAT(use(book, d), Optional(UnorderedElementsAre(c))) << "there are 20 free beside it";
}

TEST(WindowBook, LetsNobodyLeaveThatIsInUse) {
  WindowBook book({100});
  const StreamedId a = book.add(60), b = book.add(60), c = book.add(40);
  (void)book.bring(a);
  book.begin_use(a);
  EXPECT_EQ(book.bring(b), std::nullopt);
  EXPECT_FALSE(book.inside(b));
  EXPECT_TRUE(book.bring(c).has_value());
  book.end_use(a);
  EXPECT_THAT(leaving(*book.bring(b)), ElementsAre(a));
}

TEST(WindowBook, TensorsThatAreUsedTogetherLieSideBySideWhereTheyWouldNotFitAsTheyLie) {
  WindowBook book({100});
  const StreamedId small = book.add(10), a = book.add(50), b = book.add(50);
  use(book, small);
  use(book, a);
  book.begin_use(a);  // in the middle
  EXPECT_FALSE(book.has_place_for(b));
  book.end_use(a);
  book.take_back(a);
  EXPECT_THAT(leaving(*book.bring_beside(a, {a, b})), ElementsAre(small));
  EXPECT_EQ(book.bring_beside(b, {a, b})->offset, 50);
}

TEST(WindowBook, OneThatIsUsedTwiceInARowDoesNotMoveTheOrder) {
  WindowBook book({.bytes = 20, .rotating = 20});
  for (int i = 0; i < 3; ++i) book.add(10);
  book.expect(reads({0, 1, 2, 0}));
  use(book, 0);
  use(book, 0);
  EXPECT_EQ(book.bring_ahead()->tensor, 1);
}

TEST(WindowBook, OneThatIsTooLargeHasNoPlace) {
  WindowBook book({100});
  EXPECT_EQ(book.bring(book.add(101)), std::nullopt);
}

TEST(WindowBook, WithAnOrderTheOneLeavesThatIsUsedLast) {
  WindowBook book({30});
  for (int i = 0; i < 4; ++i) book.add(10);
  book.expect(reads({0, 1, 2, 3, 2, 1, 0}));
  for (const StreamedId tensor : {0, 1, 2}) use(book, tensor);
  EXPECT_THAT(use(book, 3), Optional(ElementsAre(0)));
  EXPECT_EQ(use(book, 2), std::nullopt);
  EXPECT_EQ(use(book, 1), std::nullopt);
  EXPECT_THAT(use(book, 0), Optional(ElementsAre(3))) << "0, 1 and 2 begin the next step";
}

TEST(WindowBook, WhatGoesAroundStaysInPart) {
  WindowBook book({30});
  Order order;
  for (int i = 0; i < 6; ++i) order.push_back(book.add(10));
  EXPECT_EQ(brought_in(book, order, 1), 6);
  EXPECT_EQ(brought_in(book, order, 1), 6) << "nobody knows better";
  book.expect(reads(order));
  brought_in(book, order, 1);
  EXPECT_EQ(brought_in(book, order, 10), 36) << "as few as can be: three of five";
}

TEST(WindowBook, BringsAheadOnlyInThePlaceOfWhatIsUsedLater) {
  WindowBook book({.bytes = 30, .rotating = 30});
  for (int i = 0; i < 4; ++i) book.add(10);
  book.expect(reads({0, 1, 2, 3, 0, 1}));
  for (const StreamedId tensor : {0, 1, 2}) EXPECT_EQ(book.bring_ahead()->tensor, tensor);
  EXPECT_EQ(book.bring_ahead(), std::nullopt) << "all others are used before it";
  use(book, 0);
  const auto third = book.bring_ahead();
  ASSERT_TRUE(third);
  EXPECT_EQ(third->tensor, 3);
  EXPECT_THAT(leaving(*third), ElementsAre(0)) << "which is used after 3; 1 and 2 are before";
  EXPECT_EQ(book.bring_ahead(), std::nullopt);
}

TEST(WindowBook, OneThatIsMadeComesInThePlaceOfWhatIsUsedLater) {
  WindowBook book({20});
  for (int i = 0; i < 3; ++i) book.add(10);
  book.expect(reads({0, 1, 2, 0, 2, 1}));
  use(book, 0);
  use(book, 1);
  const auto made = book.bring_made(2);
  ASSERT_TRUE(made);
  EXPECT_THAT(leaving(*made), ElementsAre(1));
  use(book, 0);
  use(book, 2);
  use(book, 1);
}

TEST(WindowBook, OneThatIsMadeAndUsedLastGoesElsewhere) {
  WindowBook book({10});
  for (int i = 0; i < 2; ++i) book.add(10);
  book.expect(reads({0, 1, 0, 1}));
  use(book, 0);
  EXPECT_EQ(book.bring_made(1), std::nullopt);
  EXPECT_TRUE(book.inside(0));
}

TEST(WindowBook, NothingComesAheadThatIsStillToBeMade) {
  WindowBook book({.bytes = 20, .rotating = 20});
  for (int i = 0; i < 3; ++i) book.add(10);
  book.expect(reads({0, 1, 2}));
  book.lose(0);
  EXPECT_EQ(book.bring_ahead()->tensor, 1);
  EXPECT_EQ(book.bring_ahead()->tensor, 2);
  EXPECT_EQ(book.bring_ahead(), std::nullopt);
  use(book, 1);
  EXPECT_EQ(book.bring_made(0), std::nullopt) << "1 and 2 are used before it is again";
}

TEST(WindowBook, WhereNothingRotatesNothingComesAhead) {
  WindowBook book({.bytes = 30, .rotating = 0});
  book.add(10);
  book.expect(reads({0}));
  EXPECT_EQ(book.bring_ahead(), std::nullopt);
}

TEST(WindowBook, WhatDoesNotRotateStays) {
  WindowBook book({.bytes = 40, .rotating = 20});
  Order order;
  for (int i = 0; i < 8; ++i) order.push_back(book.add(10));
  book.expect(reads(order));
  int came = 0;
  for (int step = 0; step < 10; ++step) {
    book.restart();
    for (const StreamedId tensor : order) {
      came += use(book, tensor) ? 1 : 0;
      while (book.bring_ahead()) ++came;
      for (const StreamedId staying : {0, 1}) EXPECT_TRUE(step == 0 || book.inside(staying));
    }
  }
  EXPECT_THAT(came, AllOf(Ge(2 + 6 * 10), Le(2 + 6 * 10 + 2))) << "up to two for the next step";
}

TEST(WindowBook, WhereThereIsRoomForAllAllStay) {
  WindowBook book({.bytes = 40, .rotating = 20});
  Order order;
  for (int i = 0; i < 4; ++i) order.push_back(book.add(10));
  book.expect(reads(order));
  EXPECT_EQ(brought_in(book, order, 3), 4);
}

TEST(WindowBook, ThoseStayThatAreCopiedMost) {
  WindowBook book({.bytes = 30, .rotating = 10});
  for (int i = 0; i < 4; ++i) book.add(10);
  book.expect({{0}, {1}, {2, StreamedUse::Does::Writes}, {3}, {1}});
  for (const StreamedId tensor : {0, 1, 2, 3, 1, 0, 1, 2, 3, 1}) use(book, tensor);
  EXPECT_TRUE(book.inside(1)) << "it would be read twice";
  EXPECT_TRUE(book.inside(2)) << "it would be read and written";
  EXPECT_FALSE(book.inside(0));
}

TEST(WindowBook, OneThatIsLargerThanWhatRotatesComesInThePlaceOfTheOthers) {
  WindowBook book({.bytes = 30, .rotating = 10});
  const StreamedId small = book.add(20), large = book.add(30);
  book.expect(reads({small, large}));
  use(book, small);
  EXPECT_EQ(book.offset(small), 10);
  EXPECT_THAT(use(book, large), Optional(ElementsAre(small)));
  EXPECT_THAT(use(book, small), Optional(ElementsAre(large)));
  EXPECT_EQ(book.offset(small), 10);
}

TEST(WindowBook, OneThatCouldNotComeIsElsewhere) {
  WindowBook book({.bytes = 10, .rotating = 10});
  const StreamedId a = book.add(10);
  book.expect(reads({a}));
  EXPECT_TRUE(book.bring_ahead());
  book.take_back(a);
  EXPECT_FALSE(book.inside(a));
  EXPECT_TRUE(book.bring_ahead());
}

TEST(WindowBook, OneThatIsRemovedLeavesItsPlaceAndTheOrder) {
  WindowBook book({.bytes = 10, .rotating = 10});
  const StreamedId a = book.add(10), b = book.add(10);
  book.expect(reads({a, b, a, b}));
  use(book, a);
  book.remove(a);
  EXPECT_THAT(leaving(*book.bring(b)), IsEmpty());
  EXPECT_EQ(book.bring_ahead(), std::nullopt);
}

TEST(WindowBook, AUseOutOfTheOrderDoesNotMoveIt) {
  WindowBook book({.bytes = 3000, .rotating = 2500});
  Order order;
  for (int i = 0; i < 200; ++i) order.push_back(book.add(10));
  book.expect(reads(order));
  use(book, order[0]);
  use(book, order[150]);
  EXPECT_EQ(book.bring_ahead()->tensor, order[1]);
}

/// The fewest times that tensors of one size come, by trying all that could leave.
int fewest(const Order& order, std::size_t places, std::set<StreamedId> inside, std::size_t from,
           std::map<std::pair<std::size_t, std::set<StreamedId>>, int>& known) {
  while (from < order.size() && inside.contains(order[from])) ++from;
  if (from == order.size()) return 0;
  const auto found = known.find({from, inside});
  if (found != known.end()) return found->second;
  const auto with = [&](std::set<StreamedId> others) {
    others.insert(order[from]);
    return 1 + fewest(order, places, std::move(others), from + 1, known);
  };
  int least = std::numeric_limits<int>::max();
  if (inside.size() < places) {
    least = with(inside);
  } else {
    for (const StreamedId leaves : inside) {
      std::set<StreamedId> others = inside;
      others.erase(leaves);
      least = std::min(least, with(others));
    }
  }
  return known[{from, inside}] = least;
}

TEST(WindowBook, OfOneSizeNoOrderOfLeavingBringsFewer) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const auto pick = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
    const int tensors = pick(2, 5);
    const std::size_t places = static_cast<std::size_t>(pick(1, 3));
    Order order;
    for (int i = pick(4, 12); i > 0; --i) order.push_back(pick(0, tensors - 1));
    WindowBook book({static_cast<Bytes>(places) * 10});
    for (int i = 0; i < tensors; ++i) book.add(10);
    // No next step: what is used no more leaves first.
    Order once = order;
    for (int i = 0; i < tensors; ++i) once.push_back(i);
    book.expect(reads(once));
    std::map<std::pair<std::size_t, std::set<StreamedId>>, int> known;
    EXPECT_EQ(brought_in(book, order, 1), fewest(order, places, {}, 0, known)) << "trial " << trial;
  }
}

TEST(WindowBook, NeverHasTwoInOnePlaceWhateverIsUsed) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 100; ++trial) {
    const auto pick = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
    const Bytes rotating = pick(0, 2) * 100;
    WindowBook book({200, rotating});
    const int tensors = pick(3, 12);
    for (int i = 0; i < tensors; ++i) book.add(pick(1, 90));
    Order order;
    for (int i = pick(0, 30); i > 0; --i) order.push_back(pick(0, tensors - 1));
    book.expect(reads(order));
    std::vector<StreamedId> in_use;
    for (int i = 0; i < 200; ++i) {
      const StreamedId tensor = pick(0, tensors - 1);
      if (pick(0, 30) == 0) book.restart();
      if (!book.inside(tensor) && !book.bring(tensor)) {
        ASSERT_FALSE(in_use.empty()) << "90 and 90 fit into 200";
      } else {
        book.begin_use(tensor);
        book.used(tensor);
        in_use.push_back(tensor);
      }
      if (in_use.size() > 1) {
        book.end_use(in_use.front());
        in_use.erase(in_use.begin());
      }
      if (pick(0, 2) == 0) (void)book.bring_ahead();
      std::map<Bytes, Bytes> places;
      for (StreamedId t = 0; t < tensors; ++t) {
        if (!book.inside(t)) continue;
        EXPECT_TRUE(places.emplace(book.offset(t), book.bytes(t)).second);
      }
      Bytes end = 0;
      for (const auto& [offset, bytes] : places) {
        ASSERT_GE(offset, end);
        end = offset + bytes;
      }
      ASSERT_LE(end, book.window().bytes);
      for (const StreamedId t : in_use) ASSERT_TRUE(book.inside(t));
    }
  }
}

}  // namespace
}  // namespace snug::plan
