// What a recording has done is put back: writes, and draws from random generators.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/replay/undone_draws.h"
#include "snug/replay/undone_writes.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;
using testing::test_memory;

TEST(UndoneWrites, SeeWhatIsAnnounced) {
  // As the graphs of a compiler announce what they write, which are no operators.
  const at::Tensor a = torch::randn({100}), before = a.clone();
  {
    const replay::UndoneWrites undone;
    const record::Unrecorded unseen({a});
    a.zero_();
  }
  EXPECT_TRUE(same_bits(a, before));
}

TEST(UndoneWrites, RefuseAStorageThatHasShrunk) {
  const at::Tensor a = torch::randn({1000});
  replay::UndoneWrites undone;
  a.zero_();
  a.storage().unsafeGetStorageImpl()->set_nbytes(400);
  EXPECT_THROW(undone.undo(), Error);
  a.storage().unsafeGetStorageImpl()->set_nbytes(4000);
}

TEST(UndoneWrites, PutBackWhatWasThereAndLeaveWhatWasMade) {
  const at::Tensor a = torch::randn({1000}), b = torch::randn({1000}), mean = torch::zeros({4});
  const at::Tensor a_before = a.clone(), mean_before = mean.clone();
  const Bytes allocated = test_memory().stats().allocated;
  at::Tensor made;
  {
    replay::UndoneWrites undone;
    a.narrow(0, 0, 10).add_(b.narrow(0, 0, 10));
    a.zero_();
    made = torch::zeros({1000});
    made.add_(b);
    std::vector<at::Tensor> list{a, made};
    at::_foreach_mul_(list, 3);
    // It says nothing of its running statistics.
    at::native_batch_norm(torch::randn({8, 4}), {}, {}, mean, torch::ones({4}), true, 0.1, 1e-5);
    EXPECT_EQ(undone.copied(), 2U);  // a and the running mean; the rest was made inside
    EXPECT_FALSE(same_bits(mean, mean_before));
  }
  EXPECT_TRUE(same_bits(a, a_before));
  EXPECT_TRUE(same_bits(mean, mean_before));
  EXPECT_TRUE(same_bits(made, b * 3));
  EXPECT_EQ(test_memory().stats().allocated, allocated + test_memory().rounded(4000));
}

TEST(UndoneWrites, PutBackWhatWasReplacedUnread) {
  at::Tensor a = torch::randn({1000});
  const at::Tensor before = a.clone(), b = torch::randn({1000});
  {
    const replay::UndoneWrites undone;
    a.copy_(b);
    at::div_out(a, b, b);
    EXPECT_EQ(undone.copied(), 1U) << "before its first write";
  }
  EXPECT_TRUE(same_bits(a, before));
}

TEST(UndoneWrites, LetGoOfWhatTheProgramLetsGoOf) {
  const Bytes allocated = test_memory().stats().allocated;
  at::Tensor gone = torch::randn({1000}), freed = torch::randn({1000});
  replay::UndoneWrites undone;
  gone.zero_();
  freed.zero_();
  EXPECT_EQ(undone.copied_bytes(), 8000);
  gone = at::Tensor();
  EXPECT_EQ(test_memory().stats().allocated, allocated + test_memory().rounded(4000))
      << "neither the copies nor what is gone";
  freed.storage().unsafeGetStorageImpl()->set_nbytes(0);  // as weights that are gathered for their use
  EXPECT_NO_THROW(undone.undo());
  freed.storage().unsafeGetStorageImpl()->set_nbytes(4000);
}

TEST(UndoneWrites, AreLeftOutOfAClock) {
  const at::Tensor a = torch::randn({1000});
  record::StepClock clock(testing::test_device()), all(testing::test_device());
  replay::UndoneWrites undone(&clock);
  std::vector<record::StepClock::Moment> at{clock.now()}, of_all{all.now()};
  const auto noted = [&] {
    at.push_back(clock.now());
    of_all.push_back(all.now());
  };
  a.zero_();  // which copies
  noted();
  a.add_(1);  // which need not
  noted();
  undone.undo();
  noted();
  clock.settle();
  all.settle();
  EXPECT_LT(clock.seconds(at[0], at[1]), all.seconds(of_all[0], of_all[1]));
  EXPECT_GT(clock.seconds(at[1], at[2]), 0) << "the step's own";
  EXPECT_LT(clock.seconds(at[2], at[3]), all.seconds(of_all[2], of_all[3]));
}

TEST(UndoneWrites, LeaveWhatWasMadeInsideWhoeverMadeIt) {
  at::Tensor by_a_thread, by_a_compiler, gathered = torch::ones({100});
  {
    const replay::UndoneWrites undone;
    std::thread([&] { by_a_thread = torch::ones({100}); }).join();
    {
      const record::Unrecorded unseen({});
      by_a_compiler = torch::ones({100});
    }
    // As weights that were freed, and are gathered for their use.
    gathered.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::GetAllocator(testing::test_device().type())->allocate(400));
    for (const at::Tensor& t : {by_a_thread, by_a_compiler, gathered}) t.fill_(3);
    EXPECT_EQ(undone.copied(), 0U);
  }
  for (const at::Tensor& t : {by_a_thread, by_a_compiler, gathered}) EXPECT_FLOAT_EQ(t[0].item<float>(), 3);
}

TEST(UndoneWrites, PutBackWhatIsReachedByAnotherTensorToo) {
  SNUG_ONLY_ON_THE_CPU("from_blob of plain memory");
  const at::Tensor storage = torch::randn({4}), before = storage.clone();
  at::Tensor memory = torch::randn({4});
  const at::Tensor first = torch::from_blob(memory.data_ptr(), {4}), second = torch::from_blob(memory.data_ptr(), {4});
  const at::Tensor memory_before = memory.clone();
  {
    const replay::UndoneWrites undone;
    // A storage is taken up by a tensor that is made inside.
    torch::empty({0}).set_(storage.storage(), 0, {4}, {1}).add_(1);
    first.add_(1);
    second.mul_(2);
    EXPECT_EQ(undone.copied(), 3U);
  }
  EXPECT_TRUE(same_bits(storage, before));
  EXPECT_TRUE(same_bits(memory, memory_before));
}

TEST(UndoneDraws, OfTheDefaultGeneratorAndOfThoseThatOperatorsAreHanded) {
  torch::manual_seed(3);
  at::Generator own = at::detail::createCPUGenerator(5), unused = at::detail::createCPUGenerator(6);
  const auto draw = [&] { return at::cat({torch::randn({20}), at::rand({20}, own)}); };
  const at::Tensor unused_before = unused.get_state();
  draw();  // in the middle of what they give
  at::Tensor inside;
  {
    const replay::UndoneDraws undone;
    inside = draw();
    EXPECT_FALSE(same_bits(draw(), inside));
  }
  EXPECT_TRUE(same_bits(draw(), inside));
  EXPECT_TRUE(same_bits(unused.get_state(), unused_before));
}

TEST(UndoneDraws, SeeWhatOtherScopesInsideSeeToo) {
  at::Generator own = at::detail::createCPUGenerator(5);
  const at::Tensor before = own.get_state(), x = torch::ones({20});
  {
    const replay::UndoneDraws undone;
    const replay::UndoneWrites writes;
    const record::OperatorGate gate({.before_write = [](const at::Tensor&) {}});
    x.uniform_(0, 1, own);
    EXPECT_FALSE(same_bits(own.get_state(), before));
  }
  EXPECT_TRUE(same_bits(own.get_state(), before));
  EXPECT_TRUE(same_bits(x, torch::ones({20})));
}

TEST(UndoneDraws, NeedNoMemoryWhenTheyEnd) {
  torch::manual_seed(3);
  std::optional<replay::UndoneDraws> undone(std::in_place);
  const at::Tensor inside = torch::randn({20});
  {
    const memory::HeldLimit full(test_memory(), test_memory().stats().allocated);
    undone.reset();
  }
  EXPECT_TRUE(same_bits(torch::randn({20}), inside));
}

}  // namespace
}  // namespace snug
