// Random numbers under threads: what an operator drew is drawn again, or the gradient is refused, whoever else draws.
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <functional>
#include <thread>

#include "snug/memory/device_memory.h"
#include "snug/record/random_state.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace {

using Hook = std::function<void()>;
Hook g_before_the_draw, g_after_the_draw;

void run_hook(const Hook& hook) {
  if (hook) hook();
}

/// What another thread does while a kernel draws can be said.
at::Tensor with_noise(const at::Tensor& x) {
  run_hook(g_before_the_draw);
  at::Tensor noise = at::rand_like(x);
  run_hook(g_after_the_draw);
  return noise.add_(x);
}

TORCH_LIBRARY(snug_random_draws_test, library) {
  library.def(torch::schema("with_noise(Tensor x) -> Tensor"), {at::Tag::nondeterministic_seeded});
  library.impl("with_noise", c10::DispatchKey::CompositeExplicitAutograd, &with_noise);
}

at::Tensor noisy(const at::Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("snug_random_draws_test::with_noise", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

void on_another_thread(const Hook& run) { std::thread(run).join(); }
void draw_elsewhere() {
  on_another_thread([] { (void)at::rand({3}); });
}

}  // namespace

namespace snug {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::same_bits;
using ::testing::ThrowsMessage;

class RandomDraws : public ::testing::Test {
 protected:
  RandomDraws() { torch::manual_seed(7); }
  ~RandomDraws() override { forget_hooks(); }
  static void forget_hooks() { g_before_the_draw = g_after_the_draw = nullptr; }

  at::Tensor loss() const { return (noisy(x) * weight).sum(); }
  at::Tensor gradient(const at::Tensor& of) const { return torch::autograd::grad({of}, {weight})[0]; }

  const at::Tensor x = at::ones({64}), weight = at::ones({64}).requires_grad_();
};

TEST_F(RandomDraws, BetweenOperatorsAreEverybodys) {
  torch::manual_seed(1);
  const at::Tensor expected = gradient(loss());
  torch::manual_seed(1);
  Region region(Recompute{});
  const at::Tensor here = loss();
  draw_elsewhere();
  const auto stood = record::save_random_state(record::default_generator(testing::test_device())).state;
  EXPECT_TRUE(same_bits(expected, gradient(here)));
  EXPECT_GT(region.replayed_ops(), 0);
  EXPECT_TRUE(same_bits(stood, record::save_random_state(record::default_generator(testing::test_device())).state));
}

TEST_F(RandomDraws, OfAnotherThreadWhileAnOperatorDrawsAreNoticed) {
  for (Hook* const hook : {&g_before_the_draw, &g_after_the_draw}) {
    const Region region(Recompute{});
    *hook = draw_elsewhere;
    const at::Tensor here = loss();
    forget_hooks();
    EXPECT_THAT([&] { (void)gradient(here); },
                ThrowsMessage<Error>(AllOf(HasSubstr("another thread drew random numbers"),
                                           HasSubstr("snug_random_draws_test::with_noise (operator 0)"))));
  }
}

TEST_F(RandomDraws, OfAnotherThreadInAReplayAreNoticedAndNotRepeated) {
  for (Hook* const hook : {&g_before_the_draw, &g_after_the_draw}) {
    const Region region(Recompute{});
    const at::Tensor here = loss();
    const auto stood = record::save_random_state(record::default_generator(testing::test_device())).state;
    *hook = draw_elsewhere;
    EXPECT_THROW((void)gradient(here), Error);
    forget_hooks();
    EXPECT_TRUE(same_bits(stood, record::save_random_state(record::default_generator(testing::test_device())).state));
  }
}

TEST_F(RandomDraws, FromAGeneratorOfItsOwnAreNobodyElses) {
  torch::manual_seed(1);
  const at::Tensor expected = gradient(loss());
  torch::manual_seed(1);
  g_before_the_draw =
      g_after_the_draw = [] { on_another_thread([] { (void)at::rand({3}, at::detail::createCPUGenerator(3)); }); };
  Region region(Recompute{});
  EXPECT_TRUE(same_bits(expected, gradient(loss())));
  EXPECT_GT(region.replayed_ops(), 0);
}

TEST_F(RandomDraws, HoldNoMemoryWhenNothingRunsAgain) {
  constexpr int kDraws = 4;
  const auto& memory = testing::cpu();  // where states of generators are, of any device
  const Bytes state =
      static_cast<Bytes>(record::save_random_state(record::default_generator(testing::test_device())).state.nbytes());
  Region region(Recompute{});
  at::Tensor loss = at::zeros({});
  const Bytes before = memory.stats().allocated;
  for (int i = 0; i < kDraws; ++i) loss = loss + this->loss();
  region.close();
  const Bytes recorded = memory.stats().allocated - before;
  EXPECT_GE(recorded, kDraws * state);
  const at::Tensor first = torch::autograd::grad({loss}, {weight}, {}, /*retain_graph=*/true)[0];
  EXPECT_GE(memory.stats().allocated - before, kDraws * state) << "they may run again";
  EXPECT_TRUE(same_bits(first, gradient(loss)));
  EXPECT_LT(memory.stats().allocated - before, state) << "the region is still there";
}

TEST_F(RandomDraws, OfOneNumberMoveAGenerator) {
  const at::Generator generator = at::detail::createCPUGenerator(5);
  const std::uint64_t begin = record::position_of(generator);
  EXPECT_EQ(begin, record::position_of(generator));
  (void)at::rand({1}, generator);
  const std::uint64_t one = record::position_of(generator);
  EXPECT_NE(begin, one);
  // Of normal numbers every second one is kept from the first.
  (void)at::randn({1}, generator, at::kDouble);
  EXPECT_NE(one, record::position_of(generator));
  ASSERT_TRUE(generator.get<at::CPUGeneratorImpl>()->next_double_normal_sample());
  const std::uint64_t kept = record::position_of(generator);
  (void)at::randn({1}, generator, at::kDouble);
  EXPECT_NE(kept, record::position_of(generator));
  EXPECT_EQ(begin, record::position_of(at::detail::createCPUGenerator(5)));
}

}  // namespace
}  // namespace snug
