// LibTorch's products catch what oneDNN throws and go on without it, with other bits: here by an operator that does the
// same on any processor.
#include "snug/memory/swallowed_refusal.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "snug/snug.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

constexpr std::int64_t kScratch = 8 << 20;  // bytes

bool g_fails_then = false;  // what it does without oneDNN

/// x, by way of scratch memory of oneDNN's; or, without oneDNN, other numbers.
at::Tensor swallowing(const at::Tensor& x) {
  if (at::globalContext().userEnabledMkldnn()) {
    try {
      (void)at::empty({kScratch}, x.options().dtype(at::kByte));
      return x.clone();
    } catch (const std::exception&) {
      at::globalContext().setUserEnabledMkldnn(false);
      if (g_fails_then) throw;
    }
  }
  return x.add(1);
}

struct Swallowing : torch::autograd::Function<Swallowing> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, bool in_backward) {
    context->saved_data["in_backward"] = in_backward;
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("snug_test::swallowing", "")
                               .typed<at::Tensor(const at::Tensor&)>();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return in_backward ? x.clone() : op.call(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {context->saved_data["in_backward"].toBool() ? swallowing(gradients[0]) : gradients[0], at::Tensor()};
  }
};

TORCH_LIBRARY_FRAGMENT(snug_test, library) { library.def("swallowing(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(snug_test, CompositeExplicitAutograd, library) { library.impl("swallowing", swallowing); }

struct Model {
  at::Tensor weight = torch::randn({64, 64}).requires_grad_();
  bool in_backward = false;
  at::Tensor operator()(const at::Tensor& x) const {
    return Swallowing::apply(x.matmul(weight).tanh(), in_backward).square().mean();
  }
  [[nodiscard]] at::Tensor take_gradient() const { return std::exchange(at::Tensor(weight).mutable_grad(), {}); }
};

TEST(SwallowedRefusal, IsARefusalInForwardAndInBackwardAndOneDnnStaysInUse) {
  SNUG_ONLY_ON_THE_CPU("oneDNN");
  memory::DeviceMemory& memory = testing::test_memory();
  for (const auto& [in_backward, fails_then] : {std::pair(false, false), {false, true}, {true, false}, {true, true}}) {
    SCOPED_TRACE(::testing::Message() << in_backward << fails_then);
    g_fails_then = fails_then;
    const Model model{.in_backward = in_backward};
    const at::Tensor x = torch::randn({32, 64});
    model(x).backward();
    const at::Tensor plain = model.take_gradient();
    const Bytes before = memory.stats().allocated;
    // While it is recorded.
    EXPECT_THROW((void)fit(model, x, {.budget = before + kScratch / 2}), DoesNotFit);
    EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
    // And in a step, where the program takes what it needs.
    Session session = fit(model, x, {.budget = before + kScratch * 3 / 2});
    at::Tensor taken;
    const auto greedy = [&](const at::Tensor& input) {
      const at::Tensor y = input.mul(1);
      taken = torch::empty({kScratch}, torch::kByte);
      return model(y);
    };
    EXPECT_THROW(session.backward(greedy, x), OutOfBudget);
    EXPECT_TRUE(at::globalContext().userEnabledMkldnn());
    (void)model.take_gradient();
    taken = at::Tensor();
    session.backward(model, x);
    EXPECT_TRUE(testing::same_bits(plain, model.take_gradient()));
  }
}

TEST(SwallowedRefusal, OneDnnThatSomebodySwitchesOffStaysOff) {
  SNUG_ONLY_ON_THE_CPU("oneDNN");
  const Model model;
  const at::Tensor x = torch::randn({32, 64});
  Session session = fit(model, x, {.budget = testing::test_memory().stats().allocated + 2 * kScratch});
  EXPECT_THROW((void)torch::empty({1 << 30}), std::exception);  // outside of a step, and it comes through
  at::globalContext().setUserEnabledMkldnn(false);
  EXPECT_NO_THROW(session.backward(model, x));
  EXPECT_FALSE(at::globalContext().userEnabledMkldnn());
  at::globalContext().setUserEnabledMkldnn(true);
  EXPECT_FALSE(memory::take_swallowed_refusal());
}

}  // namespace
}  // namespace snug
