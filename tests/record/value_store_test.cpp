// Contents of values: a storage is set exactly while the ledger calls its value resident.
#include "snug/record/value_store.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "snug/base/errors.h"
#include "tests/memory/disk_in_memory.h"

namespace snug::record {
namespace {

using plan::ValueId;
using testing::Access;
using testing::DiskInMemory;
using testing::fail_with;

class Values : public ::testing::Test {
 protected:
  /// The result of an operator that reads nothing.
  ValueId output(const at::Tensor& tensor) {
    values.flow().add_op({}, plan::kRootSegment);
    return values.add_output(tensor.storage(), plan::kNoValue);
  }
  void expect_agreement(const char* after) const {
    for (ValueId v = 0; v < values.flow().values(); ++v)
      EXPECT_EQ(static_cast<bool>(values.storage(v)), values.ledger().resident(v))
          << "value " << v << " after " << after;
  }
  static bool holds(const c10::Storage& storage, const at::Tensor& contents) {
    return std::memcmp(storage.data(), contents.data_ptr(), contents.nbytes()) == 0;
  }

  at::Tensor x = torch::randn({64}), y = torch::randn({64});
  TapeMutex mutex;
  std::lock_guard<TapeMutex> lock{mutex};
  TapeObservers observers;
  StreamOrder streams;
  ValueStore values{mutex, observers, streams};
};

TEST_F(Values, AreFoundByTheirStorageUntilItHoldsAnother) {
  EXPECT_EQ(values.in(x.storage().unsafeGetStorageImpl()), plan::kNoValue);
  const ValueId leaf = values.add_leaf(x.storage());
  EXPECT_EQ(values.in(x.storage().unsafeGetStorageImpl()), leaf);
  EXPECT_EQ(values.nbytes(leaf), 256);
  values.flow().add_op(std::vector{leaf}, plan::kRootSegment);
  const ValueId next = values.add_output(x.storage(), leaf);
  EXPECT_EQ(values.in(x.storage().unsafeGetStorageImpl()), next);
  EXPECT_EQ(values.address(leaf), values.address(next));
  values.forget_storage(x.storage().unsafeGetStorageImpl());
  EXPECT_EQ(values.in(x.storage().unsafeGetStorageImpl()), plan::kNoValue);
}

TEST_F(Values, HaveAStorageExactlyWhileTheLedgerCallsThemResident) {
  const ValueId leaf = values.add_leaf(x.storage());
  expect_agreement("add_leaf");
  const ValueId result = output(y);
  EXPECT_FALSE(values.ledger().resident(result));
  expect_agreement("add_output");
  values.hold(result, y.storage());
  expect_agreement("hold");
  const c10::Storage taken = values.take(result);
  EXPECT_TRUE(taken.is_alias_of(y.storage()));
  expect_agreement("take");
  values.cache(result, taken);
  EXPECT_TRUE(values.ledger().cached(result));
  expect_agreement("cache");
  values.hold(result, taken);
  values.discard(result);
  expect_agreement("discard");
  values.pack(result);
  values.hold(result, taken);
  values.settle(plan::Leaves::Go);
  EXPECT_FALSE(values.ledger().resident(leaf)) << "nobody needs it";
  EXPECT_TRUE(values.ledger().held(result));
  expect_agreement("settle");
  values.evict(result);
  EXPECT_FALSE(values.ledger().resident(result));
  EXPECT_EQ(values.ledger().demand(values.flow().producer(result)), 1) << "it is to run again";
  expect_agreement("evict");
  values.cache(result, taken);
  values.release(result, kNoPass);
  EXPECT_FALSE(values.ledger().resident(result));
  expect_agreement("release");
}

TEST_F(Values, ComeBackWithTheirBitsWhenTheyHaveBeenMoved) {
  const ValueId result = output(y);
  values.let_go_away(result, plan::kMove);
  values.pack(result);
  values.offload(result, y.storage());
  expect_agreement("offload");
  EXPECT_FALSE(values.away(result)) << "it has";
  EXPECT_TRUE(values.ledger().fetchable(result));
  EXPECT_EQ(values.offloaded_bytes(), 256);
  const at::Tensor contents = y.clone();
  y.zero_();
  c10::Storage fetched = values.fetch(result);
  values.arrived(result);
  EXPECT_TRUE(holds(fetched, contents));
  values.cache(result, std::move(fetched));
  values.settle(plan::Leaves::Stay);
  expect_agreement("settle");
  EXPECT_TRUE(values.ledger().fetchable(result)) << "a saved tensor stands for it";
  values.release(result, kNoPass);
  EXPECT_FALSE(values.ledger().fetchable(result)) << "nobody will ask for it any more";
  expect_agreement("release");
}

TEST_F(Values, ThatAReplayHasMadeAreGoneWhenTheyAreMoved) {
  const ValueId result = output(y);
  values.cache(result, y.storage());
  values.offload(result, y.storage());
  expect_agreement("offload");
  EXPECT_FALSE(values.ledger().resident(result));
}

TEST_F(Values, StayWhereTheyAreWhenTheyCannotBeMoved) {
  const ValueId result = output(y);
  values.let_go_away(result, plan::kMove);
  const char* tmpdir = std::getenv("TMPDIR");
  const std::string before = tmpdir != nullptr ? tmpdir : "";
  ::setenv("TMPDIR", "/no/such/folder", 1);
  EXPECT_THROW(values.offload(result, y.storage()), Error);
  tmpdir != nullptr ? ::setenv("TMPDIR", before.c_str(), 1) : ::unsetenv("TMPDIR");
  EXPECT_FALSE(values.ledger().fetchable(result));
  EXPECT_EQ(values.offloaded_bytes(), 0);
  expect_agreement("an offload that failed");
  values.hold(result, y.storage());
  EXPECT_TRUE(values.ledger().held(result));
}

/// What cannot be written shows when it must be gone; what cannot be read, when it is read.
TEST_F(Values, ThatTheDiskLosesAreHeldOrMadeAgainWhereTheyCanBe) {
  bool writes_fail = true, reads_fail = true;
  values.use(std::make_shared<memory::Tiers>(memory::TierBudgets{}, [&] {
    return std::make_unique<DiskInMemory>([&](Access access, std::span<std::byte>) {
      if (access == Access::Write ? writes_fail : reads_fail) fail_with(EIO);
    });
  }));
  const ValueId result = output(y), leaf = values.add_leaf(x.storage());
  values.pack(result);
  values.pack(leaf);
  const OnTheWay beside{.bytes = 256, .most = 1024};
  values.offload(result, y.storage(), beside);
  EXPECT_EQ(values.gone(result), 0);
  EXPECT_TRUE(values.ledger().held(result)) << "as it could not be written";
  EXPECT_FALSE(values.ledger().fetchable(result));
  EXPECT_EQ(values.storage(result).data(), y.storage().data());
  EXPECT_EQ(values.offloaded_bytes(), 0);
  EXPECT_THROW(values.offload(result, y.storage()), Error) << "without waiting it would not show";
  EXPECT_TRUE(values.ledger().held(result));
  expect_agreement("lost on its way");

  writes_fail = false;
  values.offload(result, y.storage(), beside);
  values.cache(result, values.fetch(result));
  EXPECT_THROW(values.arrived(result), Error);
  EXPECT_TRUE(values.do_without(result));
  EXPECT_TRUE(values.ledger().held(result)) << "where it still was";
  EXPECT_EQ(values.storage(result).data(), y.storage().data());
  expect_agreement("a read that failed before it had left");

  values.offload(result, y.storage(), beside);
  values.offload(leaf, x.storage(), beside);
  values.all_gone();
  values.settle(plan::Leaves::Stay);
  EXPECT_TRUE(values.ledger().fetchable(result));
  for (const ValueId v : {result, leaf}) {
    values.cache(v, values.fetch(v));
    EXPECT_THROW(values.arrived(v), Error);
  }
  EXPECT_FALSE(values.do_without(leaf)) << "no operator makes it";
  EXPECT_TRUE(values.do_without(result));
  EXPECT_FALSE(values.ledger().resident(result));
  EXPECT_FALSE(values.ledger().fetchable(result));
  EXPECT_EQ(values.ledger().demand(values.flow().producer(result)), 1) << "it is to run again";
  expect_agreement("lost");
}

TEST_F(Values, OfALeafThatIsCopiedAreWhatTheyWere) {
  const ValueId leaf = values.add_leaf(x.storage());
  const at::Tensor before = x.clone();
  values.copy_before_write(leaf);
  expect_agreement("copy_before_write");
  EXPECT_TRUE(values.copied(leaf));
  x.zero_();
  EXPECT_TRUE(holds(values.storage(leaf), before));
  const void* copy = values.storage(leaf).data();
  values.copy_before_write(leaf);
  EXPECT_EQ(values.storage(leaf).data(), copy) << "once";
}

TEST_F(Values, OfOperatorsThatTheProgramHasAreListedWhileTheyAreHeld) {
  values.add_leaf(x.storage());
  const ValueId first = output(y);
  values.hold(first, y.storage());
  const at::Tensor z = torch::ones({8});
  const ValueId second = output(z);
  values.hold(second, z.storage());
  EXPECT_EQ(values.held_results().size(), 2U);
  values.discard(first);
  ASSERT_EQ(values.held_results().size(), 1U);
  EXPECT_EQ(values.held_results()[0], second);
  values.make_leaf(second);
  EXPECT_TRUE(values.held_results().empty());
  EXPECT_TRUE(values.of_result(second));
}

TEST_F(Values, TellWhetherTheProgramHasLetGo) {
  at::Tensor z = torch::ones({8});
  const ValueId result = output(z);
  values.hold(result, z.storage());
  EXPECT_FALSE(values.only_ours(result));
  EXPECT_FALSE(values.program_let_go(result));
  z = at::Tensor();
  EXPECT_TRUE(values.only_ours(result));
  EXPECT_TRUE(values.program_let_go(result));
}

TEST_F(Values, KnowWhetherTheStorageOfALeafHasBeenFreed) {
  const ValueId leaf = values.add_leaf(x.storage());
  EXPECT_FALSE(values.resized(leaf));
  x.storage().unsafeGetStorageImpl()->set_nbytes(0);
  EXPECT_TRUE(values.resized(leaf));
}

TEST_F(Values, AreReportedWhenTheyAreDroppedWithWhatThatFreed) {
  struct Drops final : TapeObserver {
    std::vector<std::pair<ValueId, std::optional<Bytes>>> all;
    void dropped(ValueId value, std::optional<Bytes> freed) override { all.emplace_back(value, freed); }
  };
  const auto drops = std::make_shared<Drops>();
  observers.add(drops);
  const ValueId shared = output(y);
  values.hold(shared, y.storage());
  at::Tensor z = torch::ones({8});
  const ValueId alone = output(z);
  values.hold(alone, z.storage());
  z = at::Tensor();
  values.settle(plan::Leaves::Go);
  using Drop = std::pair<ValueId, std::optional<Bytes>>;
  EXPECT_EQ(drops->all, (std::vector<Drop>{{shared, std::nullopt}, {alone, 32}}));
}

}  // namespace
}  // namespace snug::record
