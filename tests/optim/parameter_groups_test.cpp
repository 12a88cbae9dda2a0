// Parameters by their names.
#include "snug/optim/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/optim/sgd.h"
#include "tests/base/fault.h"

namespace snug::optim {
namespace {

using snug::testing::fault;
using ::testing::HasSubstr;

Parameters three() {
  Parameters parameters{torch::ones({2, 2}), torch::ones({2}), torch::ones({2, 2})};
  parameters.names = {"embed.weight", "block.norm.weight", "head.weight"};
  return parameters;
}

TEST(ParameterGroups, DecayMatricesAndNothingElse) {
  const auto groups = grouped(three());
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].members, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(groups[0].weight_decay, std::nullopt);
  EXPECT_EQ(groups[1].members, (std::vector<std::size_t>{1}));
  EXPECT_EQ(groups[1].weight_decay, 0.0);
}

TEST(ParameterGroups, FollowRulesOfWhichLaterOnesWin) {
  Parameters parameters = three();
  parameters.rules = parse_group_rules(
      "*: weight_decay=0.5; embed*: learning_rate=0.25 weight_decay=0; norm.weight: learning_rate=2;");
  const auto groups = grouped(parameters);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].weight_decay, 0.0);
  EXPECT_EQ(groups[0].learning_rate, 0.25);
  EXPECT_EQ(groups[1].weight_decay, 0.5);
  EXPECT_EQ(groups[1].learning_rate, 2);
  EXPECT_EQ(groups[2].learning_rate, 1);
}

TEST(ParameterGroups, TakePartInAnUpdate) {
  Parameters parameters = three();
  parameters.rules = parse_group_rules("head*: learning_rate=0.5; *: weight_decay=0");
  for (at::Tensor& p : parameters.tensors) {
    p.requires_grad_();
    p.mutable_grad() = torch::ones_like(p);
  }
  Sgd optimizer(parameters, {.momentum = 0, .weight_decay = 0.9});
  optimizer.step(0.5);
  EXPECT_EQ(parameters.tensors[0].sum().item<float>(), 2);
  EXPECT_EQ(parameters.tensors[2].sum().item<float>(), 3);
  optimizer.step(2, 0.5);
  EXPECT_EQ(parameters.tensors[0].sum().item<float>(), 2) << "one parameter alone";
  EXPECT_EQ(parameters.tensors[2].sum().item<float>(), 2);
}

TEST(ParameterGroups, RefuseWhatIsNoRule) {
  EXPECT_TRUE(parse_group_rules("").empty());
  EXPECT_TRUE(parse_group_rules(" ; ").empty());
  const auto of = [](const char* text) { return fault([&] { (void)parse_group_rules(text); }); };
  EXPECT_THAT(of("weight_decay=0"), HasSubstr("has no pattern and colon in front"));
  EXPECT_THAT(of(": weight_decay=0"), HasSubstr("has no pattern and colon in front"));
  EXPECT_THAT(of("a:"), HasSubstr("sets nothing"));
  EXPECT_THAT(of("a: decay=0"), HasSubstr("unknown setting \"decay\""));
  EXPECT_THAT(of("a: weight_decay"), HasSubstr("\"weight_decay\", which is no setting"));
  for (const char* number : {"-1", "inf", "nan", "0x1", "1e", ""})
    EXPECT_THAT(of((std::string("a: weight_decay=") + number).c_str()), HasSubstr("must be a number, at least 0"));
  Parameters parameters = three();
  parameters.rules = parse_group_rules("haed.weight: weight_decay=0");
  EXPECT_EQ(fault([&] { (void)grouped(parameters); }),
            "optimizer.groups: no parameter that trains has a name of the pattern \"haed.weight\"; did you mean "
            "\"head.weight\"? patterns are of whole names, or of their ends behind a dot");
}

}  // namespace
}  // namespace snug::optim
