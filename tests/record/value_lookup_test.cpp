// Which value a tensor's contents are, and what becomes of one that something unseen writes over.
#include "snug/record/value_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>

#include "snug/base/errors.h"

namespace snug::record {
namespace {

using plan::ValueId;
using ::testing::HasSubstr;

class Lookup : public ::testing::Test {
 protected:
  ValueId value_of(const at::Tensor& t) { return lookup.value_of(t.storage(), SeenVersion(t)); }
  /// What an operator made of `inputs`, held as the program has it.
  ValueId output(const at::Tensor& t, const std::vector<ValueId>& inputs = {}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::sin", "");
    calls.add(calls.begin(op, traits_of(op), c10::DispatchKeySet(c10::DispatchKey::CPU)), 0);
    values.flow().add_op(inputs, plan::kRootSegment);
    const ValueId value = values.add_output(t.storage(), plan::kNoValue);
    versions.set(value, SeenVersion(t));
    values.hold(value, t.storage());
    return value;
  }

  torch::NoGradGuard no_grad;
  at::Tensor x = torch::randn({64}), y = torch::randn({64});
  TapeMutex mutex;
  std::lock_guard<TapeMutex> lock{mutex};
  TapeObservers observers;
  CallLog calls;
  StreamOrder streams;
  ValueStore values{mutex, observers, streams};
  VersionTracker versions;
  ValueLookup lookup{values, versions, calls, observers};
};

TEST_F(Lookup, WhatNobodyMadeIsALeafThatIsHeld) {
  const ValueId leaf = value_of(x);
  EXPECT_TRUE(values.flow().is_leaf(leaf));
  EXPECT_TRUE(values.ledger().held(leaf));
  EXPECT_EQ(value_of(x), leaf);
  EXPECT_EQ(value_of(x.view({8, 8})), leaf) << "a view of it";
  EXPECT_NE(value_of(y), leaf);
}

TEST_F(Lookup, AnUnseenWriteMakesALeafOfAResultWhichIsLost) {
  const ValueId result = output(y);
  EXPECT_EQ(value_of(y), result);
  y.add_(1);
  const ValueId now = value_of(y);
  EXPECT_NE(now, result);
  EXPECT_TRUE(values.flow().is_leaf(now));
  EXPECT_TRUE(values.of_result(now)) << "an operator made the storage";
  EXPECT_TRUE(values.ledger().held(now));
  EXPECT_FALSE(values.ledger().resident(result));
  ASSERT_EQ(lookup.opaque().size(), 1U);
  EXPECT_EQ(lookup.opaque()[0].operation, "aten::sin (operator 0)");
  EXPECT_EQ(lookup.opaque()[0].bytes, 256);
  EXPECT_EQ(lookup.opaque()[0].what, Opaque::Case::WrittenOver);
}

TEST_F(Lookup, ACounterThatIsNewAndHasCountedIsNotTrustedWithAResult) {
  const ValueId result = output(y);
  EXPECT_EQ(value_of(y.variable_data()), result) << "a new counter";
  at::Tensor alias = y.variable_data();
  alias.add_(1);
  EXPECT_NE(value_of(alias), result);
}

TEST_F(Lookup, WritesAreNoticedWithoutAReader) {
  const ValueId result = output(y), other = output(x);
  y.add_(1);
  lookup.notice_writes();
  EXPECT_FALSE(values.ledger().resident(result));
  EXPECT_TRUE(values.ledger().held(other));
  EXPECT_TRUE(lookup.opaque().empty()) << "nobody has read what is there now";
}

TEST_F(Lookup, WhatNothingSeenHasFilledIsKeptWhenItIsRead) {
  const ValueId result = output(y);
  values.set_unfilled(result);
  y.add_(1);
  EXPECT_EQ(value_of(y), result) << "by whomever";
  lookup.report(result, Opaque::Case::Filled);
  lookup.make_leaf(result, SeenVersion(y));
  EXPECT_TRUE(values.flow().is_leaf(result));
  EXPECT_FALSE(values.unfilled(result));
  EXPECT_EQ(lookup.opaque()[0].what, Opaque::Case::Filled);
  y.add_(1);
  EXPECT_NE(value_of(y), result);
}

TEST_F(Lookup, AnOperatorIsNotRunAgainOnWhatHasBeenWrittenOrFreed) {
  const ValueId leaf = value_of(x);
  output(y, {leaf});
  EXPECT_NO_THROW(lookup.check_inputs(0));
  const auto message = [&] {
    try {
      lookup.check_inputs(0);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  x.add_(1);
  EXPECT_THAT(message(), HasSubstr("aten::sin (operator 0) reads a tensor of 256 B, which was modified in place"));
  versions.look_again(leaf);
  x.storage().unsafeGetStorageImpl()->set_nbytes(0);
  EXPECT_THAT(message(), HasSubstr("whose storage had 256 B when it was recorded and has 0 B now"));
}

TEST_F(Lookup, OfWatchedLeavesTheMemoryCountsToo) {
  x = at::zeros({100, 1000});
  const ValueId leaf = value_of(x);
  output(y, {leaf});
  auto* const memory = x.mutable_data_ptr<float>();
  std::fill_n(memory, x.numel(), 1.0F);
  EXPECT_EQ(value_of(x), leaf) << "nobody has said that it is watched";
  lookup.watch(leaf, x.storage());
  EXPECT_NO_THROW(lookup.check_inputs(0));
  EXPECT_EQ(value_of(x), leaf);
  std::fill_n(memory, x.numel(), 2.0F);
  EXPECT_THAT([&] { lookup.check_inputs(0); }, ::testing::ThrowsMessage<Error>(HasSubstr(
                                                   "aten::sin (operator 0) reads a tensor of 390.6 KiB, whose memory "
                                                   "was written after it was recorded")));
  const ValueId after = value_of(x);
  EXPECT_NE(after, leaf);
  EXPECT_EQ(value_of(x), after) << "which is not watched yet";
}

TEST_F(Lookup, NamesAResultByItsOperator) {
  EXPECT_EQ(lookup.name_of(value_of(x)), "a tensor of 256 B");
  EXPECT_EQ(lookup.name_of(output(y)), "a tensor of 256 B, a result of aten::sin");
}

/// As the result of a collective that goes on, of which views are taken.
TEST_F(Lookup, WhatSomebodyElseFillsIsOneValueFromTheFirstViewToItsEnd) {
  lookup.being_filled(y.storage());
  const ValueId value = value_of(y.view({8, 8}));
  lookup.watch(value, y.storage());
  y.add_(1);
  EXPECT_EQ(value_of(y.view({4, 16})), value) << "in the middle of it";
  y.add_(1);
  lookup.filled(y.storage());
  EXPECT_EQ(value_of(y), value);
  lookup.watch(value, y.storage());
  y.add_(1);
  EXPECT_NE(value_of(y), value) << "from then on it is a tensor as any other";
}

TEST_F(Lookup, AStorageThatIsFreedAndComesBackWithTheSameContentsIsTheSameValue) {
  const ValueId leaf = value_of(x);
  lookup.watch(leaf, x.storage());
  c10::StorageImpl* storage = x.storage().unsafeGetStorageImpl();
  const std::size_t bytes = storage->nbytes();
  storage->set_nbytes(0);
  EXPECT_EQ(value_of(x), leaf);
  storage->set_nbytes(bytes);
  EXPECT_EQ(value_of(x), leaf);
  x.mutable_data_ptr<float>()[0] += 1;  // without a version
  EXPECT_NE(value_of(x), leaf) << "with other contents";
}

}  // namespace
}  // namespace snug::record
