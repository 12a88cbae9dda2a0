// Calls with their parts: what is not recorded leaves nothing behind.
#include "snug/record/call_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "snug/base/module_scope.h"

namespace snug::record {
namespace {

using ::testing::FieldsAre;
using ::testing::Not;

class Calls : public ::testing::Test {
 protected:
  /// add.Tensor of two leaves, whose parts are in the log and which is not.
  Call begin(const at::Tensor& a, const at::Tensor& b) {
    Call call = calls.begin(op, traits_of(op), c10::DispatchKeySet(c10::DispatchKey::CPU));
    for (const at::Tensor& t : {a, b}) {
      const std::int32_t first = calls.next_view();
      calls.add_view(t, value_of(t));
      calls.add_tensors(Argument::Kind::Tensor, first);
    }
    calls.add_constant(c10::Scalar(1));
    return call;
  }
  plan::OpId add(const at::Tensor& a, const at::Tensor& b) {
    Call call = begin(a, b);
    const std::uint64_t signature = calls.sign(*call.traits, [&](plan::ValueId value) { return flow.is_leaf(value); });
    return calls.add(call, signature);
  }
  plan::ValueId value_of(const at::Tensor& t) {
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      if (leaves[i].is_same(t)) return static_cast<plan::ValueId>(i);
    }
    leaves.push_back(t);
    return flow.add_leaf();
  }

  c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  plan::Dataflow flow;
  CallLog calls;
  std::vector<at::Tensor> leaves;
  at::Tensor x = torch::randn({2, 3}), y = torch::randn({3}), z = torch::randn({4, 2, 3});
};

TEST_F(Calls, RolledBackPartsAreGone) {
  add(x, y);
  const CallLog::Mark mark = calls.mark();
  const auto as_before = FieldsAre(mark.arguments, mark.views, mark.constants, mark.geometry, mark.draws);
  Call call = begin(z, x);
  calls.add_random_state(call, save_random_state(default_generator(c10::kCPU)));
  EXPECT_EQ(call.random, 0);
  EXPECT_THAT(calls.mark(), Not(as_before));
  EXPECT_EQ(calls.arguments_since(mark).size(), 3U);
  calls.roll_back(mark);
  EXPECT_THAT(calls.mark(), as_before);
  EXPECT_EQ(calls.size(), 1);
}

TEST_F(Calls, ACallAfterARollBackIsWhatItWouldHaveBeen) {
  add(x, y);
  const CallLog::Mark mark = calls.mark();
  begin(z, x);
  calls.roll_back(mark);
  const plan::OpId second = add(y, x);
  EXPECT_EQ(calls.inputs_of(calls.call(second)), "float[3], float[2, 3]");
  EXPECT_EQ(calls.inputs_of(calls.call(0)), "float[2, 3], float[3]");
  const View& view = calls.view(calls.argument(calls.call(second), 0).index);
  EXPECT_TRUE(calls.geometry().tensor(view, y.storage()).equal(y));
  EXPECT_EQ(calls.constant(calls.argument(calls.call(second), 2).index).toScalar().toInt(), 1);
}

TEST_F(Calls, TheSameCallOfOtherValuesHasAnotherSignature) {
  add(x, y);
  add(x, y);
  add(y, x);
  EXPECT_EQ(calls.signature(0), calls.signature(1));
  EXPECT_NE(calls.signature(0), calls.signature(2));
}

TEST_F(Calls, AreDescribedByNameNumberAndModule) {
  add(x, y);
  {
    const ModuleScope blocks("blocks"), third("3");
    add(x, y);
  }
  add(x, y);
  EXPECT_EQ(calls.describe(0), "aten::add.Tensor (operator 0)");
  EXPECT_EQ(calls.describe(1), "aten::add.Tensor (operator 1 in blocks.3)");
  EXPECT_EQ(calls.module_of(2), "");
}

TEST_F(Calls, SecondsAreThoseThatWereNoted) {
  add(x, y);
  add(x, y);
  calls.note_seconds(0.5);
  EXPECT_EQ(calls.seconds(0), 1.0) << "nobody measured it";
  EXPECT_EQ(calls.seconds(1), 0.5);
}

}  // namespace
}  // namespace snug::record
