// What schemas do not tell of operators.
#include "snug/record/operator_traits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/record/declared_operators.h"

namespace snug::record {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const OperatorTraits& traits_of_name(const char* name) {
  return traits_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
}

/// They compute with running statistics, or a state, and leave them alone, or are seen as the operators that they call.
bool leaves_statistics_alone(std::string_view name) {
  constexpr std::array<std::string_view, 4> kNames = {"aten::batch_norm", "aten::instance_norm",
                                                      "aten::_batch_norm_no_update",
                                                      "aten::_native_batch_norm_legit_no_training"};
  return std::ranges::find(kNames, name) != kNames.end() || name.ends_with("_backward") ||
         name.ends_with("_functional");
}

TEST(OperatorTraits, KnowWhoWritesRunningStatisticsThoughNoSchemaSaysSo) {
  int hidden = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::") || leaves_statistics_alone(name.name)) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op) continue;
    const auto& arguments = op->schema().arguments();
    const OperatorTraits& traits = traits_of(*op);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string& argument = arguments[i].name();
      if (argument != "running_mean" && argument != "running_var" && argument != "dropout_state") continue;
      EXPECT_TRUE(traits.may_write(i)) << traits.name << " writes " << argument;
      if (traits.writes[i] != 0) continue;
      ++hidden;
      // Only in training, where it says whether it is.
      const auto says = std::ranges::find_if(
          arguments, [](const c10::Argument& a) { return a.name() == "training" || a.name() == "train"; });
      ASSERT_EQ(traits.hidden_writes.only_if.has_value(), says != arguments.end()) << traits.name;
      if (says == arguments.end()) continue;
      EXPECT_EQ(*traits.hidden_writes.only_if, says - arguments.begin()) << traits.name;
    }
  }
  EXPECT_GE(hidden, 16);
}

TEST(OperatorTraits, KnowWhatCollectivesWrite) {
  const OperatorTraits& in_place = traits_of_name("c10d::allreduce_");
  EXPECT_NE(in_place.collective, OperatorTraits::Collective::No);
  EXPECT_TRUE(in_place.may_write(0));
  EXPECT_FALSE(in_place.writes_any) << "its schema does not say so";
  EXPECT_FALSE(traits_of_name("c10d::send").may_write(0));
  const OperatorTraits& into = traits_of_name("_c10d_functional::all_gather_into_tensor_out");
  EXPECT_FALSE(into.may_write(0));
  EXPECT_TRUE(into.may_write(3)) << "as its schema says";
  for (const auto& [name, written] :
       {std::pair("_c10d_functional::irecv", 0), {"_c10d_functional::batch_p2p_ops", 3}}) {
    const auto op = c10::Dispatcher::singleton().findSchema({name, ""});  // not in every LibTorch
    if (!op) continue;
    EXPECT_TRUE(traits_of(*op).may_write(static_cast<std::size_t>(written))) << name;
  }
}

TEST(OperatorTraits, TakeWhatIsDeclared) {
  const OperatorDeclaration before = *declaration_of("aten::_ctc_loss");
  EXPECT_EQ(traits_of_name("aten::_ctc_loss").scratch_result, 1);
  declare_operator({.name = "aten::_ctc_loss", .writes = {0}, .writes_only_if = 5});
  const OperatorTraits& declared = traits_of_name("aten::_ctc_loss");
  EXPECT_TRUE(declared.may_write(0));
  EXPECT_EQ(declared.hidden_writes.positions, std::vector<int>{0});
  EXPECT_EQ(declared.hidden_writes.only_if, 5) << "zero_infinity";
  EXPECT_EQ(declared.scratch_result, 1) << "of an operator of PyTorch, what is not declared stays known";
  declare_operator(before);
  EXPECT_EQ(traits_of_name("aten::_ctc_loss").scratch_result, 1);
}

TEST(OperatorTraits, RefuseDeclarationsOfNothing) {
  for (const char* name : {"mine", "::x", "mine::", "mine::op.out", "", "<CustomOpDef(mine::op)>"}) {
    EXPECT_THAT([&] { declare_operator({.name = name}); },
                ThrowsMessage<UsageError>(HasSubstr("is not the name of an operator")))
        << name;
  }
  EXPECT_THAT(
      [] {
        declare_operator({.name = "mine::op", .writes = {0, -1}});
      },
      ThrowsMessage<UsageError>(HasSubstr("mine::op: an argument that is written is at -1")));
  EXPECT_THAT([] { declare_operator({.name = "mine::op", .scratch_result = -2}); },
              ThrowsMessage<UsageError>(HasSubstr("scratch_result is at -2")));
  // What is registered is known.
  EXPECT_THAT([] { declare_operator({.name = "aten::_ctc_loss", .writes = {99}}); },
              ThrowsMessage<UsageError>(HasSubstr("no tensor is argument 99")));
  EXPECT_THAT([] { declare_operator({.name = "aten::_ctc_loss", .writes = {0}, .writes_only_if = 1}); },
              ThrowsMessage<UsageError>(HasSubstr("argument 1 (they count from 0) is no bool")));
  EXPECT_THAT([] { declare_operator({.name = "aten::convolution", .writes = {3}}); },
              ThrowsMessage<UsageError>(HasSubstr("no tensor is argument 3")))
      << "a list of numbers";
  EXPECT_THAT([] { declare_operator({.name = "aten::_ctc_loss", .scratch_result = 7}); },
              ThrowsMessage<UsageError>(HasSubstr("it has no result 7")));
}

TEST(OperatorTraits, KnowWhoseResultsAreThereWhenSomebodyHasWaited) {
  using enum OperatorTraits::Collective;
  EXPECT_EQ(traits_of_name("_c10d_functional::all_reduce").collective, FillsLater);
  EXPECT_EQ(traits_of_name("_c10d_functional::wait_tensor").collective, Waits);
  EXPECT_EQ(traits_of_name("c10d::allreduce_").collective, AtOnce) << "what it returns says when";
}

}  // namespace
}  // namespace snug::record
