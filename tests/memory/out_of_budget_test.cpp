#include "snug/memory/out_of_budget.h"

#include <gtest/gtest.h>

#include <exception>
#include <thread>
#include <utility>

#include "tests/base/front_end_scope.h"
#include "tests/memory/translating_front_end.h"

namespace snug {
namespace {

using memory::Tag;

TEST(OutOfBudget, SaysInOneLineWhatWasAskedForAndWhatIsThere) {
  OutOfBudget::Details details;
  details.requested = 2_MiB;
  details.operation = "aten::mm";
  details.stats.allocated = 99_MiB;
  details.stats.limit = 100_MiB;
  details.stats.by_tag = {60_MiB, 0, 0, 39_MiB, 0, 0};
  details.largest = {{20_MiB, Tag::Weights}, {5_MiB, Tag::Activations}};
  const OutOfBudget error(details);
  EXPECT_STREQ(
      error.what(),
      "out of budget: aten::mm asked for 2.0 MiB while 99.0 MiB of the 100.0 MiB limit is taken (weights 60.0 MiB, "
      "activations 39.0 MiB) and nothing is left to evict; largest blocks: 20.0 MiB (weights), 5.0 MiB "
      "(activations); raise the budget or use a smaller batch");
  EXPECT_EQ(error.details().requested, 2_MiB);
  EXPECT_EQ(error.details().largest.size(), 2U);
}

TEST(OutOfBudget, SaysThatNoStepWasThereToEvictFor) {
  OutOfBudget::Details details;
  details.in_step = false;
  details.stats.limit = 100_MiB;
  const std::string text = OutOfBudget(details).what();
  EXPECT_NE(text.find("outside of any step of a session, where nothing can be evicted"), std::string::npos) << text;
  EXPECT_NE(text.find("end the session or lift the limit for it"), std::string::npos) << text;
}

TEST(OutOfBudget, DoesWithoutAnOperationAndBlocks) {
  OutOfBudget::Details details;
  details.stats.limit = 0;
  const std::string text = OutOfBudget(details).what();
  EXPECT_NE(text.find("an allocation asked for 0 B"), std::string::npos) << text;
  EXPECT_NE(text.find("(nothing)"), std::string::npos) << text;
  EXPECT_NE(text.find("largest blocks: none"), std::string::npos) << text;
}

TEST(OutOfBudget, NamesNoLimitWhereThereIsNone) {
  OutOfBudget::Details details;
  details.requested = 400_GiB;
  details.operation = "aten::zeros";
  details.stats.allocated = details.stats.mapped = 7_GiB;
  details.stats.by_tag = {7_GiB, 0, 0, 0, 0, 0};
  details.machine = 24_GiB;
  EXPECT_STREQ(
      OutOfBudget(details).what(),
      "out of memory: aten::zeros asked for 400.0 GiB while 7.0 GiB (weights 7.0 GiB) is taken, and this process "
      "can have 24.0 GiB at most, with swap; largest blocks: none; use a smaller batch");
  details.requested = 1_GiB;
  EXPECT_STREQ(OutOfBudget(details).what(),
               "out of memory: aten::zeros asked for 1.0 GiB while 7.0 GiB (weights 7.0 GiB) is taken, and the system "
               "refuses more; largest blocks: none; use a smaller batch, or raise what limits the process (ulimit -v)");
}

TEST(RefusalIn, ReadsARefusalAsItIsAndAsTheFrontEndHasIt) {
  const auto refused = [] {
    try {
      OutOfBudget::Details details;
      details.requested = 2_MiB;
      memory::refuse(std::move(details));
    } catch (...) {
      return std::current_exception();
    }
  };
  const std::exception_ptr own = refused();
  const testing::FrontEndScope scope(testing::kTranslating);
  const std::exception_ptr translated = refused();
  EXPECT_THROW(std::rethrow_exception(own), OutOfBudget);
  EXPECT_THROW(std::rethrow_exception(translated), testing::Translated);
  for (const std::exception_ptr& error : {own, translated}) {
    const auto details = memory::refusal_in(error);
    ASSERT_TRUE(details);
    EXPECT_EQ(details->requested, 2_MiB);
  }
  EXPECT_FALSE(memory::refusal_in(std::make_exception_ptr(Error("another"))));
}

TEST(OperationScope, NestsAndBelongsToItsThread) {
  EXPECT_EQ(memory::current_operation(), "");
  const std::string outer = "aten::linear", inner = "aten::addmm";
  {
    const memory::OperationScope a(&outer);
    {
      const memory::OperationScope b(&inner);
      EXPECT_EQ(memory::current_operation(), "aten::addmm");
      std::string there = "unset";
      std::thread([&] { there = memory::current_operation(); }).join();
      EXPECT_EQ(there, "");
    }
    EXPECT_EQ(memory::current_operation(), "aten::linear");
  }
  EXPECT_EQ(memory::current_operation(), "");
}

TEST(Describe, ListsTheTagsThatAreNotZero) {
  EXPECT_EQ(memory::describe({}), "nothing");
  EXPECT_EQ(memory::describe({1_KiB, 0, 2_KiB, 0, 0, 5}), "weights 1.0 KiB, optimizer 2.0 KiB, workspace 5 B");
}

}  // namespace
}  // namespace snug
