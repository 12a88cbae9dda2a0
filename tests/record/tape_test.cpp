// What the tape notes of operators: values by storage and version, views as geometry, leaves, opaque values.
#include "snug/record/tape.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "snug/record/recording.h"

namespace snug::record {
namespace {

using plan::Output;
using plan::ValueId;

class TapeOf : public ::testing::Test {
 protected:
  /// Records `run` and returns how many operators the tape has.
  plan::OpId record(const std::function<void()>& run) {
    tape = std::make_shared<Tape>(KeepSaved{});
    const Recording recording(tape);
    run();
    return tape->flow().ops();
  }
  [[nodiscard]] std::string name(plan::OpId op) const { return tape->calls().call(op).traits->name; }
  [[nodiscard]] std::vector<ValueId> inputs(plan::OpId op) const {
    const auto found = tape->flow().inputs(op);
    return {found.begin(), found.end()};
  }
  std::shared_ptr<Tape> tape;
  torch::NoGradGuard no_grad;
};

TEST_F(TapeOf, ViewsAreGeometryAndNotOperators) {
  const at::Tensor x = torch::randn({4, 6});
  EXPECT_EQ(record([&] { x.t().view({6, 4}).narrow(0, 1, 2).select(1, 0).unsqueeze(0); }), 0);
  EXPECT_EQ(record([&] { x.t().add(x.t()); }), 1);
  EXPECT_EQ(inputs(0), (std::vector<ValueId>{0, 0})) << "both views look at the one leaf";
  EXPECT_TRUE(tape->flow().is_leaf(0));
}

TEST_F(TapeOf, AnInPlaceOperatorMakesTheNextVersionOfTheStorage) {
  const at::Tensor x = torch::randn({4});
  ASSERT_EQ(record([&] {
              at::Tensor y = x * 2;
              y.add_(1);
              y.exp();
            }),
            3);
  const Output second = tape->flow().outputs(1)[0];
  EXPECT_EQ(second.overwrites, tape->flow().outputs(0)[0].value);
  EXPECT_EQ(inputs(2), std::vector<ValueId>{second.value});
}

TEST_F(TapeOf, OnlyTheOutermostCallIsSeen) {
  const at::Tensor x = torch::randn({3, 4, 5}), w = torch::randn({6, 5}), b = torch::randn({6});
  ASSERT_EQ(record([&] { at::linear(x, w, b); }), 1);
  EXPECT_EQ(name(0), "aten::addmm");
}

TEST_F(TapeOf, ARecordedWriteToALeafLeavesItsContentsInACopy) {
  at::Tensor x = torch::ones({1024});
  const at::Tensor before = x.clone();
  record([&] {
    x.sin();
    x.mul_(3.0);
  });
  const ValueId leaf = inputs(0)[0];
  ASSERT_TRUE(tape->values().copied(leaf));
  EXPECT_EQ(std::memcmp(tape->values().storage(leaf).data(), before.data_ptr(), before.nbytes()), 0);
  EXPECT_FLOAT_EQ(x[0].item<float>(), 3.0F);
}

TEST_F(TapeOf, AnUpdateOfWhatNothingHasReadIsNotRecordedAndCopiesNothing) {
  at::Tensor x = torch::ones({1024});
  record([&] {
    x.mul_(3.0);
    x.narrow(0, 0, 8).add_(1.0);
    x.sin();
  });
  ASSERT_EQ(tape->flow().ops(), 1);
  const ValueId leaf = inputs(0)[0];
  EXPECT_TRUE(tape->flow().is_leaf(leaf));
  EXPECT_FALSE(tape->values().copied(leaf));
  EXPECT_EQ(tape->values().storage(leaf).data(), x.storage().data());
}

TEST_F(TapeOf, EmptyThatNothingRecordedWroteIsALeafOnceItIsRead) {
  record([&] {
    const at::Tensor raw = at::empty({4});
    raw.data_ptr<float>()[0] = 1;  // behind the recorder's back
    raw.add(1.0);
  });
  ASSERT_EQ(tape->flow().ops(), 2);
  EXPECT_TRUE(tape->flow().is_leaf(inputs(1)[0]));
  record([&] {
    at::Tensor filled = at::empty({4});
    filled.fill_(2.0);
    filled.add(1.0);
  });
  ASSERT_EQ(tape->flow().ops(), 3);
  EXPECT_TRUE(inputs(1).empty()) << "fill_ replaces all that it writes: it does not read";
  EXPECT_FALSE(tape->flow().is_leaf(inputs(2)[0]));
}

TEST_F(TapeOf, BatchNormWritesItsStatisticsThoughItsSchemaDoesNotSaySo) {
  torch::nn::BatchNorm2d norm(3);
  const at::Tensor x = torch::randn({2, 3, 4, 4});
  record([&] { norm(x); });
  bool found = false;
  for (plan::OpId op = 0; op < tape->flow().ops(); ++op) {
    if (name(op) != "aten::native_batch_norm") continue;
    found = true;
    int overwritten = 0;
    for (const Output& out : tape->flow().outputs(op)) overwritten += out.overwrites != plan::kNoValue ? 1 : 0;
    EXPECT_EQ(overwritten, 2);
  }
  EXPECT_TRUE(found);
  norm->eval();
  record([&] { norm(x); });
  for (plan::OpId op = 0; op < tape->flow().ops(); ++op) {
    for (const Output& out : tape->flow().outputs(op)) EXPECT_EQ(out.overwrites, plan::kNoValue);
  }
}

TEST_F(TapeOf, RandomOperatorsKeepTheStateThatTheyDrewFrom) {
  torch::manual_seed(4);
  record([&] { at::dropout(torch::ones({8}), 0.5, true); });
  int random = 0;
  for (plan::OpId op = 0; op < tape->flow().ops(); ++op) random += tape->calls().call(op).random >= 0 ? 1 : 0;
  EXPECT_EQ(random, 1);
}

TEST_F(TapeOf, SignaturesTellShapesAndDataflowApartAndNotContents) {
  const auto signature = [&](const at::Tensor& a, const at::Tensor& b) {
    record([&] { a.add(b); });
    return tape->calls().signature(0);
  };
  const at::Tensor x = torch::randn({4}), y = torch::randn({4}), wide = torch::randn({5});
  EXPECT_EQ(signature(x, y), signature(y, x));
  EXPECT_NE(signature(x, y), signature(x, x));
  EXPECT_NE(signature(x, y), signature(wide, wide));
  EXPECT_NE(signature(x, y), signature(x.to(at::kDouble), y));
}

TEST_F(TapeOf, AFailedOperatorIsNotRecorded) {
  const at::Tensor x = torch::randn({4});
  EXPECT_EQ(record([&] { EXPECT_THROW(x.view({2, 2}).mm(torch::randn({3, 3})), c10::Error); }), 1);
  EXPECT_EQ(name(0), "aten::randn") << "only the other operand";
}

TEST_F(TapeOf, NothingIsRecordedOutsideOfTheScope) {
  const at::Tensor x = torch::randn({4});
  record([&] { x.add(x); });
  x.mul(x);
  EXPECT_EQ(tape->flow().ops(), 1);
  EXPECT_EQ(recording_tape(), nullptr);
}

/// All that malloc has handed out, large blocks included; tensors' memory comes from elsewhere.
std::size_t heap_bytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(TapeMemory, TenThousandOperatorsTakeUnderEightMebibytes) {
  const torch::NoGradGuard no_grad;
  const at::Tensor w = torch::randn({8, 8}), b = torch::randn({8});
  const auto run_blocks = [&](std::int64_t operators) {
    at::Tensor x = torch::randn({4, 8});
    const auto tape = std::make_shared<Tape>(KeepSaved{});
    const Recording recording(tape);
    while (tape->flow().ops() < operators) {
      const at::Tensor n = torch::layer_norm(x, {8}, b, b);
      const at::Tensor h = at::addmm(b, n, w.t());
      const at::Tensor heads = h.view({4, 2, 4}).transpose(0, 1);
      const at::Tensor a = torch::softmax(torch::bmm(heads, heads.transpose(1, 2)), -1);
      const at::Tensor y = torch::bmm(a, heads).transpose(0, 1).reshape({4, 8});
      x = x + at::gelu(at::addmm(b, y, w));
      x.mul_(0.5);
    }
    return tape;
  };
  run_blocks(100);  // what is set up once
  const std::size_t before = heap_bytes();
  const auto tape = run_blocks(10'000);
  const std::size_t bytes = heap_bytes() - before;
  EXPECT_LT(bytes, std::size_t{8} << 20) << static_cast<double>(bytes) / 10'000 << " bytes per operator";
  tape->finish();
}

TEST_F(TapeOf, AnOperatorThatIsDefinedAnewHasTheTraitsOfItsNewSchema) {
  // Its schema often comes to lie where the old one was.
  for (int round = 0; round < 64; ++round) {
    const bool two = round % 2 == 1;
    torch::Library library(torch::Library::FRAGMENT, "snug_test", std::nullopt, __FILE__, __LINE__);
    library.def(two ? "redefined(Tensor a, Tensor b) -> Tensor" : "redefined(Tensor(a!) a) -> ()");
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("snug_test::redefined", "");
    const OperatorTraits& traits = traits_of(op);
    ASSERT_EQ(traits.arguments.size(), two ? 2U : 1U) << "round " << round;
    ASSERT_EQ(traits.writes_any, !two);
  }
}

TEST_F(TapeOf, RandomNumbersAreThoseOfTheDeviceThatIsAskedFor) {
  const at::Tensor x = torch::ones({4});
  const auto has_state = [&](const at::TensorOptions& options) {
    record([&] { at::rand_like(x, options); });
    return tape->flow().ops() > 0 && tape->calls().call(0).random >= 0;
  };
  EXPECT_TRUE(has_state({}));
  EXPECT_TRUE(has_state(at::TensorOptions(c10::kCPU)));
  EXPECT_FALSE(has_state(at::TensorOptions(c10::kMeta)));  // not the CPU's, though that is where the tensor is
}

TEST_F(TapeOf, ThePlaceInMemoryThatWasThereIsNoPartOfWhatAnOperatorIs) {
  const at::Tensor data = torch::randn({8, 4}), other = torch::randn({8, 4});
  const auto signatures = [&](const at::Tensor& batch) {
    record([&] { batch.mul(2); });
    return tape->calls().signature(0);
  };
  const std::uint64_t first = signatures(data.narrow(0, 0, 2));
  EXPECT_EQ(signatures(data.narrow(0, 4, 2)), first);
  EXPECT_EQ(signatures(other.narrow(0, 6, 2)), first);
  EXPECT_NE(signatures(data.narrow(0, 0, 3)), first);
  EXPECT_NE(signatures(data.narrow(0, 0, 2).to(torch::kDouble)), first);
  // A queue is written elsewhere in each step, and read again.
  const auto written = [&](int begin) {
    record([&] {
      const at::Tensor batch = data.narrow(0, begin, 2);
      batch.mul_(2);
      batch.sin();
    });
    const auto all = tape->calls().signatures();
    return std::vector(all.begin(), all.end());
  };
  EXPECT_EQ(written(4), written(0));
  EXPECT_EQ(written(0).size(), 1U) << "the write runs once";
  // Parts of what an operator made are told apart.
  const auto part = [&](int begin) {
    record([&] { data.mul(2).narrow(0, begin, 2).add(1); });
    return tape->calls().signature(1);
  };
  EXPECT_NE(part(0), part(4));
}

TEST_F(TapeOf, NamesTheTensorsOfACall) {
  const at::Tensor a = torch::randn({3, 4}), b = torch::randn({4, 2});
  record([&] { at::cat({a.matmul(b), torch::ones({1, 2})}); });
  EXPECT_EQ(tape->calls().inputs_of(tape->calls().call(0)), "float[3, 4], float[4, 2]");
  EXPECT_EQ(tape->calls().inputs_of(tape->calls().call(2)), "float[3, 2], float[1, 2]");
}

}  // namespace
}  // namespace snug::record
