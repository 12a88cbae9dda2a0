// Replays that are checked against hashes of what was dropped.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "snug/base/module_scope.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace {

/// An operator that does not repeat itself: element 5000 counts its calls.
at::Tensor drift(const at::Tensor& x) {
  static int calls = 0;
  at::Tensor y = x.clone();
  y.mutable_data_ptr<float>()[5000] = static_cast<float>(++calls);
  return y;
}

TORCH_LIBRARY(snug_test, library) {
  library.def("drift(Tensor x) -> Tensor");
  library.impl("drift", c10::DispatchKey::CPU, &drift);
}

at::Tensor call_drift(const at::Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("snug_test::drift", "").typed<at::Tensor(const at::Tensor&)>();
  const at::AutoDispatchBelowAutograd below;  // it has no derivative
  return op.call(x);
}

}  // namespace

namespace snug {
namespace {

using testing::same_bits;

TEST(VerifyReplay, PassesWhereReplaysAreRight) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 8, 3)), torch::nn::BatchNorm1d(8),
                            torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::Dropout(0.4),
                            torch::nn::Conv1d(torch::nn::Conv1dOptions(8, 2, 3)));
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(12, 5).num_layers(2).dropout(0.2));
  const at::Tensor x = torch::randn({3, 4, 16}, at::requires_grad());
  const auto forward = [&] { return std::get<0>(lstm(net->forward(x))).square().sum(); };
  const auto gradient = [&](bool verified) {
    torch::manual_seed(7);
    std::optional<Region> region;
    if (verified) region.emplace(Recompute{}, RegionOptions{.verify_replay = VerifyReplay::Hashes});
    const at::Tensor loss = forward();
    const at::Tensor result = torch::autograd::grad({loss}, {x})[0];
    EXPECT_TRUE(!verified || region->replayed_ops() > 5);
    return result;
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

/// Its alignments are written only as far as each sequence goes.
TEST(VerifyReplay, RaisesNoAlarmAtMemoryThatNobodyWrote) {
  const at::Tensor x = torch::randn({40, 3, 10}, at::requires_grad());
  const at::Tensor targets = torch::randint(1, 10, {3, 12});
  const auto lengths = [](std::initializer_list<std::int64_t> values) { return torch::tensor(std::vector(values)); };
  const Region region(Recompute{}, RegionOptions{.verify_replay = VerifyReplay::Hashes});
  const at::Tensor loss = torch::ctc_loss(x.log_softmax(2), targets, lengths({40, 17, 9}), lengths({12, 5, 2})).sin();
  // What was dropped is free memory by now: something else is written there before it is made again.
  for (const std::int64_t floats : {3 * 40 * 25, 4096, 2048, 1024}) {
    std::vector<at::Tensor> all;
    for (int k = 0; k < 20; ++k) all.push_back(torch::full({floats}, 1e3 + k));
  }
  EXPECT_NO_THROW(loss.backward());
}

TEST(VerifyReplay, RefusesASecondBackwardToo) {
  const at::Tensor x = torch::randn({8192}), w = torch::randn({8192}, at::requires_grad());
  const Region region(Recompute{}, RegionOptions{.verify_replay = VerifyReplay::Hashes});
  const at::Tensor loss = (call_drift(x) * w).sum();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), Error) << i;
    EXPECT_FALSE(w.grad().defined());
  }
}

TEST(VerifyReplay, NamesTheOperatorItsModuleAndThePlace) {
  const at::Tensor x = torch::randn({8192}), w = torch::randn({8192}, at::requires_grad());
  const CheckpointOptions options{
      .mode = Replay{.region = Recompute{}, .options = {.verify_replay = VerifyReplay::Hashes}}};
  const at::Tensor y = checkpoint(options, [&] {
    const ModuleScope scope("blocks.3");
    return w * call_drift(x.sin());
  });
  try {
    y.sum().backward();
    FAIL() << "it went unnoticed";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("snug_test::drift (operator 1 in blocks.3) made other bits"), std::string::npos) << text;
    EXPECT_NE(text.find("elements 4096 to 5119"), std::string::npos) << text;
    EXPECT_NE(text.find("declare_operator(\"snug_test::drift\", keeps_state=True)"), std::string::npos) << text;
  }
}

TEST(VerifyReplay, ByValuesNamesTheElementAndWhatItWas) {
  const at::Tensor x = torch::randn({8192}), w = torch::randn({64, 128}, at::requires_grad());
  const CheckpointOptions options{
      .mode = Replay{.region = Recompute{}, .options = {.verify_replay = VerifyReplay::Values}}};
  at::Tensor drifted;
  const at::Tensor y = checkpoint(options, [&] { return w * (drifted = call_drift(x.sin())).view({128, 64}).t(); });
  const float was = drifted[5000].item<float>();
  drifted = at::Tensor();
  try {
    y.sum().backward();
    FAIL() << "it went unnoticed";
  } catch (const Error& error) {
    const auto words = fmt::format("element [8, 78], which was {} and is {};", was, was + 1);  // 5000 = 78 * 64 + 8
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what() << "\n" << words;
  }
}

TEST(VerifyReplay, WithoutItTheGradientIsSilentlyAnotherOne) {
  const at::Tensor x = torch::randn({8192}), w = torch::randn({8192}, at::requires_grad());
  at::Tensor drifted;
  const CheckpointOptions options{.mode =
                                      Replay{.region = Recompute{}, .options = {.verify_replay = VerifyReplay::Off}}};
  const at::Tensor y = checkpoint(options, [&] {
    const at::Tensor result = call_drift(x.sin());
    drifted = result.clone();  // what the program has is not recomputed
    return w * result;
  });
  EXPECT_FALSE(same_bits(torch::autograd::grad({y.sum()}, {w})[0], drifted));
}

TEST(VerifyReplay, KeepingTheOperatorIsTheCureThatItNames) {
  const at::Tensor x = torch::randn({8192}), w = torch::randn({8192}, at::requires_grad());
  const CheckpointOptions options{.mode = Replay{.region = Selective{.keep = {"snug_test::drift"}},
                                                 .options = {.verify_replay = VerifyReplay::Hashes}}};
  at::Tensor drifted;
  const at::Tensor y = checkpoint(options, [&] { return w * (drifted = call_drift(x.sin())); });
  EXPECT_TRUE(same_bits(torch::autograd::grad({y.sum()}, {w})[0], drifted));
}

TEST(VerifyReplay, InASessionFindsWhatItsPlanDrops) {
  const at::Tensor x = torch::randn({8192}), w = torch::randn({8192}, at::requires_grad());
  auto& memory = testing::test_memory();
  const auto step = [&] { return (w * call_drift(x.sin())).sum(); };
  auto recorded = replay::record_step(step, memory);
  plan::MemoryPlan nothing = plan::bare_plan(recorded.graph);
  plan::Planner planner(recorded.graph, plan::predicted(recorded.graph, std::move(nothing)));
  Session session(std::move(recorded), std::move(planner), std::nullopt, memory);
  EXPECT_THROW(session.backward(step), Error) << "its first step is compared";
  EXPECT_FALSE(w.grad().defined());
  session.verify_replays(VerifyReplay::Values);
  EXPECT_THROW(session.backward(step), Error);
  session.verify_replays(VerifyReplay::Off);
  EXPECT_NO_THROW(session.backward(step));
}

/// Views that do not lie densely, read where they are.
TEST(VerifyReplay, OnceTakesNoMemoryThatIsNotInThePlan) {
  const at::Tensor x = torch::randn({256, 64}), w = torch::randn({64, 192}, at::requires_grad());
  auto& memory = testing::test_memory();
  const auto step = [&] {
    const std::vector<at::Tensor> parts = at::mm(x, w).sin().chunk(3, 1);
    return (parts[0] * parts[1].t().contiguous().t() * parts[2].exp()).sum();
  };
  auto recorded = replay::record_step(step, memory);
  plan::MemoryPlan nothing = plan::bare_plan(recorded.graph);
  plan::Planner planner(recorded.graph, plan::predicted(recorded.graph, std::move(nothing)));
  Session session(std::move(recorded), std::move(planner), std::nullopt, memory);
  for (const VerifyReplay how : {VerifyReplay::Once, VerifyReplay::Off}) {
    session.verify_replays(how);
    w.mutable_grad().reset();
    memory.reset_peak();
    session.backward(step);
    EXPECT_EQ(session.last_step().compared_values > 0, how == VerifyReplay::Once);
    EXPECT_EQ(memory.stats().allocated_peak, session.plan().predicted_peak);
  }
}

TEST(VerifyReplay, OnceComparesAllValuesOfASessionAndThenOneInEachStep) {
  const at::Tensor x = torch::randn({8192}), w = torch::randn({8192}, at::requires_grad());
  auto& memory = testing::test_memory();
  const auto step = [&] { return (w * x.sin()).sum() + (w * x.cos()).sum() + (w * x.tanh()).sum(); };
  auto recorded = replay::record_step(step, memory);
  plan::MemoryPlan nothing = plan::bare_plan(recorded.graph);
  plan::Planner planner(recorded.graph, plan::predicted(recorded.graph, std::move(nothing)));
  Session session(std::move(recorded), std::move(planner), std::nullopt, memory);
  for (const std::int64_t compared : {3, 1, 1, 1, 1}) {
    w.mutable_grad().reset();
    session.backward(step);
    EXPECT_EQ(session.last_step().compared_values, compared);
    EXPECT_EQ(session.last_step().replayed_ops, 3);
  }
}

TEST(VerifyReplay, OnceComparesWhatRegionsAtOnePlaceDropOnce) {
  const at::Tensor x = torch::randn({8192}), w = torch::randn({8192}, at::requires_grad());
  const auto drifting = [&](bool drifts) {
    const Region region(Recompute{});
    return w * (drifts ? call_drift(x.sin()) : x.sin().cos());
  };
  EXPECT_NO_THROW(drifting(false).sum().backward());
  EXPECT_THROW(drifting(true).sum().backward(), Error) << "other operators at the same place";
}

// --- operators that schemas tell too little of
// -------------------------------------------------------------------------

/// Multiplies by random numbers that its schema does not tell of, from the generator that it is given, if any.
at::Tensor noisy(const at::Tensor& x, const std::optional<at::Generator>& generator) {
  return x * at::rand(x.sizes(), generator, x.options());
}

/// A product inside of the kernel, which autocast casts where it is on.
at::Tensor product(const at::Tensor& x, const at::Tensor& w) { return at::matmul(x, w).to(at::kFloat); }

std::int64_t s_calls = 0;
at::Tensor counted(const at::Tensor& x) { return x * static_cast<double>(++s_calls); }

bool s_transposes = false;  // as flags of a library may choose the layout of results
at::Tensor laid_out(const at::Tensor& x) { return s_transposes ? x.sin().t().contiguous().t() : x.sin(); }

TORCH_LIBRARY_FRAGMENT(snug_test, library) {
  library.def("laid_out(Tensor x) -> Tensor");
  library.impl("laid_out", c10::DispatchKey::CPU, &laid_out);
  library.def("noisy(Tensor x, Generator? generator) -> Tensor");
  library.impl("noisy", c10::DispatchKey::CPU, &noisy);
  library.def("product(Tensor x, Tensor w) -> Tensor");
  library.impl("product", c10::DispatchKey::CPU, &product);
  library.def("counted(Tensor x) -> Tensor");
  library.impl("counted", c10::DispatchKey::CPU, &counted);
}

template <class Result, class... Arguments>
at::Tensor call(const char* name, const Arguments&... arguments) {
  const at::AutoDispatchBelowAutograd below;  // they have no derivatives
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Result>().call(arguments...);
}

/// Gradients of w and where the generator stands afterwards: plain, or in a region that recomputes.
template <class Forward>
std::pair<at::Tensor, at::Tensor> outcome(const at::Tensor& w, bool in_region, const Forward& forward) {
  torch::manual_seed(11);
  std::optional<Region> region;
  if (in_region) region.emplace(Recompute{});
  const at::Tensor loss = forward();
  if (region) region->close();
  const at::Tensor gradient = torch::autograd::grad({loss}, {w})[0];
  EXPECT_TRUE(!region || region->replayed_ops() > 0);
  return {gradient, at::globalContext().defaultGenerator(at::kCPU).get_state()};
}

template <class Forward>
void expect_same_in_region(const at::Tensor& w, const Forward& forward) {
  const auto [plain, plain_state] = outcome(w, false, forward);
  const auto [replayed, replayed_state] = outcome(w, true, forward);
  EXPECT_TRUE(same_bits(plain, replayed));
  EXPECT_TRUE(same_bits(plain_state, replayed_state));
}

TEST(ForeignOperators, DrawTheSameNumbersAgainThoughTheirSchemasDoNotTellOfAny) {
  const at::Tensor x = torch::randn({512}), w = torch::randn({512}, at::requires_grad());
  using Noisy = at::Tensor(const at::Tensor&, const std::optional<at::Generator>&);
  expect_same_in_region(
      w, [&] { return (w * call<Noisy>("snug_test::noisy", x.sin(), std::optional<at::Generator>())).sum(); });
  const at::Generator own = at::detail::createCPUGenerator(5);
  const at::Tensor start = own.get_state();
  expect_same_in_region(w, [&] {
    at::Generator(own).set_state(start);
    return (w * call<Noisy>("snug_test::noisy", x.sin(), std::optional(own))).sum();
  });
}

TEST(ForeignOperators, AreCastInsideAsTheyWereUnderAutocast) {
  const at::Tensor x = torch::randn({32, 32}), w = torch::randn({32, 32}, at::requires_grad());
  using Product = at::Tensor(const at::Tensor&, const at::Tensor&);
  for (const bool casts : {false, true}) {
    expect_same_in_region(w, [&] {
      at::autocast::set_autocast_enabled(at::kCPU, casts);
      const at::Tensor p = call<Product>("snug_test::product", x.sin(), x);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      return (w * p).sum();
    });
  }
}

TEST(ForeignOperators, ThatKeepAStateRunOnceWhereThatIsDeclared) {
  const at::Tensor x = torch::randn({512}), w = torch::randn({512}, at::requires_grad());
  using Counted = at::Tensor(const at::Tensor&);
  const auto forward = [&] {
    s_calls = 0;
    return (w * call<Counted>("snug_test::counted", x.sin()).cos()).sum();
  };
  EXPECT_THROW(outcome(w, true, forward), Error) << "undeclared, it multiplies by another number";
  declare_operator({.name = "snug_test::counted", .keeps_state = true});
  expect_same_in_region(w, forward);
  EXPECT_EQ(s_calls, 1);
}

TEST(ForeignOperators, WhoseResultsHaveOtherStridesInAReplayAreAnError) {
  const at::Tensor x = torch::randn({64, 32}), w = torch::randn({64, 32}, at::requires_grad());
  const auto loss = [&] {
    const Region region(Recompute{});
    return (w * call<at::Tensor(const at::Tensor&)>("snug_test::laid_out", x.cos())).sum();
  };
  s_transposes = false;
  EXPECT_NO_THROW(loss().backward());
  const at::Tensor recorded = loss();
  s_transposes = true;
  EXPECT_THAT([&] { recorded.backward(); },
              ::testing::ThrowsMessage<Error>(::testing::AllOf(::testing::HasSubstr("snug_test::laid_out"),
                                                               ::testing::HasSubstr("other sizes or strides"))));
  s_transposes = false;
}

}  // namespace
}  // namespace snug
