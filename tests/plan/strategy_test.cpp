#include "snug/plan/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "snug/base/bytes.h"
#include "snug/base/errors.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string mistake_in(std::string_view text) {
  try {
    strategy_from(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

TEST(Strategy, ReadsEveryForm) {
  EXPECT_TRUE(std::holds_alternative<strategies::Optimal>(strategy_from("optimal")));
  EXPECT_TRUE(std::holds_alternative<strategies::None>(strategy_from(" none ")));
  EXPECT_TRUE(std::holds_alternative<strategies::EveryBlock>(strategy_from("every_block")));
  EXPECT_TRUE(std::holds_alternative<strategies::ChenSqrt>(strategy_from("chen_sqrt")));
  EXPECT_TRUE(std::holds_alternative<strategies::CoreAttention>(strategy_from("core_attention")));
  EXPECT_EQ(std::get<strategies::Revolve>(strategy_from("revolve(3)")).checkpoints, 3);
  EXPECT_EQ(std::get<strategies::Sequential>(strategy_from("sequential( 12 )")).segments, 12);
  EXPECT_EQ(std::get<strategies::FullUniform>(strategy_from("full_uniform(2)")).layers, 2);
  EXPECT_EQ(std::get<strategies::FullBlock>(strategy_from("full_block(5)")).layers, 5);
  EXPECT_EQ(std::get<strategies::Offload>(strategy_from("offload(2MiB)")).min_bytes, 2_MiB);
  EXPECT_EQ(std::get<strategies::OffloadedBlocks>(strategy_from("offloaded_blocks(0)")).kept, 0);
  EXPECT_THAT(std::get<strategies::RecomputeModules>(strategy_from("recompute_modules(mlp,norm)")).names,
              ElementsAre("mlp", "norm"));
  EXPECT_THAT(std::get<strategies::RecomputeOutputs>(strategy_from("recompute_outputs(norm)")).names,
              ElementsAre("norm"));
  EXPECT_THAT(std::get<strategies::OffloadModules>(strategy_from("offload_modules(mlp)")).names, ElementsAre("mlp"));
  EXPECT_THAT(std::get<strategies::SelectiveBlocks>(strategy_from("selective(aten::mm, aten::addmm)")).operators,
              ElementsAre("aten::mm", "aten::addmm"));
}

TEST(Strategy, ReadsBackWhatItListsOnceArgumentsAreFilledIn) {
  EXPECT_EQ(strategy_forms().size(), std::variant_size_v<Strategy>);
  std::size_t alternative = 0;
  for (std::string form : strategy_forms()) {
    if (const auto at = form.find("(N)"); at != std::string::npos) form.replace(at, 3, "(2)");
    if (const auto at = form.find("(BYTES)"); at != std::string::npos) form.replace(at, 7, "(1KiB)");
    EXPECT_EQ(strategy_from(form).index(), alternative++) << form;
  }
}

TEST(Strategy, OptimalAloneMayCompress) {
  EXPECT_TRUE(may_compress(" optimal "));
  for (const char* text : {"none", "every_block", "offload(1KiB)", "eviction"}) EXPECT_FALSE(may_compress(text));
}

TEST(Strategy, SaysWhatItsPlansMayDo) {
  for (const char* text : {"optimal", "offload(1KiB)", "offload_modules(mlp)", "offloaded_blocks(1)"})
    EXPECT_TRUE(may_move(text)) << text;
  for (const char* text : {"none", "every_block", "eviction", "selective(aten::mm)"})
    EXPECT_FALSE(may_move(text)) << text;
  for (const char* text : {"every_block", "sequential(2)", "offloaded_blocks(1)", "recompute_modules(mlp)"})
    EXPECT_TRUE(drops_without_budget(text)) << text;
  for (const char* text : {"optimal", "none", "eviction", "offload(1KiB)"})
    EXPECT_FALSE(drops_without_budget(text)) << text;
}

TEST(Strategy, SaysWhatIsWrong) {
  EXPECT_THAT(mistake_in("optimum"), HasSubstr("unknown strategy \"optimum\"; did you mean \"optimal\"?"));
  EXPECT_THAT(mistake_in(""), HasSubstr("it must be one of optimal, none, every_block"));
  EXPECT_EQ(mistake_in("revolve"), "strategy: revolve needs its arguments: revolve(N)");
  EXPECT_EQ(mistake_in("selective()"), "strategy: selective needs its arguments: selective(OPERATOR,...)");
  EXPECT_EQ(mistake_in("optimal(2)"), "strategy: optimal takes no arguments");
  EXPECT_EQ(mistake_in("sequential(4"), "strategy: \"sequential(4\" has no closing parenthesis");
  for (const char* text : {"offload(much)", "offload(-1)", "offload(1,2)"})
    EXPECT_EQ(mistake_in(text), "strategy: offload takes a number of bytes, as in offload(1KiB)") << text;
  EXPECT_EQ(mistake_in("offloaded_blocks(-1)"),
            "strategy: offloaded_blocks takes one whole number from 0 on, as in offloaded_blocks(1)");
  for (const char* text : {"sequential(0)", "sequential(-1)", "sequential(two)", "sequential(2,3)", "sequential(2x)",
                           "sequential(99999999999)"}) {
    EXPECT_EQ(mistake_in(text), "strategy: sequential takes one whole number from 1 on, as in sequential(4)") << text;
  }
}

}  // namespace
}  // namespace snug::plan
