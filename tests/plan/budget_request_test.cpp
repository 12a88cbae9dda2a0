// Budgets as they are asked for: read once, written as what reads the same.
#include "snug/plan/budget_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "snug/base/errors.h"

namespace snug::plan {
namespace {

TEST(ParseBudget, ReadsNothingBytesAndPercent) {
  EXPECT_EQ(parse_budget(""), std::nullopt);
  EXPECT_EQ(parse_budget(" \n"), std::nullopt);
  EXPECT_EQ(parse_budget("400MiB"), BudgetRequest(400_MiB));
  EXPECT_EQ(parse_budget(" 0.5 gib\n"), BudgetRequest(512_MiB));
  EXPECT_EQ(parse_budget("60%"), BudgetRequest(Percent{60}));
  EXPECT_EQ(parse_budget(" 12.5 % "), BudgetRequest(Percent{12.5}));
  EXPECT_EQ(parse_budget("100%"), BudgetRequest(Percent{100}));
}

TEST(ParseBudget, RefusesWhatIsNoBudget) {
  for (const std::string text : {"0%", "-5%", "101%", "nan%", "%", "6x%", "+60%", "6_0%"}) {
    EXPECT_THAT([&] { (void)parse_budget(text); },
                ::testing::ThrowsMessage<UsageError>(
                    "budget: \"" + text + "\" is not a percentage above 0 and up to 100; write it as in 60%"));
  }
  EXPECT_THAT([] { (void)parse_budget("40"); },
              ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr("write 40%, 40MiB")));
  EXPECT_EQ(parse_budget("40B"), BudgetRequest(Bytes{40}));
  EXPECT_EQ(parse_budget("8589934592"), BudgetRequest(8_GiB));
  EXPECT_THAT([] { (void)parse_budget("0"); },
              ::testing::ThrowsMessage<UsageError>(
                  "budget: \"0\" leaves no memory at all; give more than 0 bytes, or leave it empty for no budget"));
  EXPECT_THAT([] { (void)parse_budget("-1"); },
              ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr("is not a size")));
}

TEST(BudgetRequest, IsWrittenAsWhatReadsTheSame) {
  EXPECT_EQ(to_text(std::nullopt), "");
  EXPECT_EQ(to_text(BudgetRequest(400_MiB)), "400MiB");
  EXPECT_EQ(to_text(BudgetRequest(2048 * 1_GiB)), "2TiB");
  EXPECT_EQ(to_text(BudgetRequest(1'000'000'001)), "1000000001B");
  EXPECT_EQ(to_text(BudgetRequest(Percent{60})), "60%");
  for (const BudgetRequest& request :
       {BudgetRequest(3), BudgetRequest(1_KiB + 1), BudgetRequest(Percent{100.0 / 3}), BudgetRequest(Percent{1e-7})}) {
    EXPECT_EQ(parse_budget(to_text(request)), request);
  }
}

TEST(BudgetRequest, OfBytesIsKnownBeforeTheStepAndAShareAfterIt) {
  EXPECT_EQ(limit_of(BudgetRequest(400_MiB)), 400_MiB);
  EXPECT_EQ(limit_of(BudgetRequest(Percent{60})), std::nullopt);
  EXPECT_EQ(limit_of(std::nullopt), std::nullopt);
  EXPECT_EQ(budget_for(std::nullopt, 100_MiB), std::nullopt);
  EXPECT_EQ(budget_for(BudgetRequest(400_MiB), 100_MiB)->limit, 400_MiB);
  EXPECT_GE(budget_for(BudgetRequest(Percent{60}), 100_MiB)->for_blocks(), 60_MiB);
  EXPECT_LT(budget_for(BudgetRequest(Percent{60}), 100_MiB)->limit, 64_MiB);
}

}  // namespace
}  // namespace snug::plan
