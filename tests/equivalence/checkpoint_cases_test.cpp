// What other systems test about activation checkpointing, and where they are known to break, each case named after its
// source. Cases that only a rerun can have run in that mode; all others in both.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;
namespace nn = torch::nn;

const CheckpointOptions kReplay{};
const CheckpointOptions kRerun{.mode = Rerun{}};

class BothModes : public ::testing::TestWithParam<const CheckpointOptions*> {
 protected:
  BothModes() { torch::manual_seed(11); }
  [[nodiscard]] const CheckpointOptions& options() const { return *GetParam(); }
  [[nodiscard]] bool reruns() const { return std::holds_alternative<Rerun>(options().mode); }
};
INSTANTIATE_TEST_SUITE_P(Checkpoint, BothModes, ::testing::Values(&kReplay, &kRerun),
                         [](const auto& mode) { return mode.param == &kReplay ? "Replay" : "Rerun"; });

struct CountingImpl : nn::Module {
  explicit CountingImpl(std::int64_t width) : linear(register_module("linear", nn::Linear(width, width))) {
    counter = register_buffer("counter", torch::zeros({}));
  }
  at::Tensor forward(at::Tensor x) {
    counter += 1;
    return linear(x).relu();
  }
  nn::Linear linear{nullptr};
  at::Tensor counter;
};
TORCH_MODULE(Counting);

// test/test_utils.py, TestCheckpoint.test_checkpoint_trigger: ten modules in two segments.
TEST_P(BothModes, PytorchCheckpointTrigger) {
  std::vector<Counting> layers;
  for (int i = 0; i < 10; ++i) layers.emplace_back(4);
  const at::Tensor y = checkpoint_sequential(layers, 2, torch::randn({2, 4}, at::requires_grad()), options());
  for (const Counting& layer : layers) EXPECT_EQ(layer->counter.item<float>(), 1);
  y.sum().backward();
  for (std::size_t i = 0; i < layers.size(); ++i) {
    EXPECT_EQ(layers[i]->counter.item<float>(), reruns() && i < 5 ? 2 : 1) << i;
  }
}

// test_checkpoint_valid: autograd.grad, which the reentrant kind cannot do.
TEST_P(BothModes, PytorchCheckpointValid) {
  Counting layer(4);
  const at::Tensor x = torch::randn({2, 4}, at::requires_grad());
  const at::Tensor y = checkpoint(
      options(), [&](const at::Tensor& t) { return layer(t); }, x);
  const at::Tensor gradient = torch::autograd::grad({y.sum()}, {x})[0];
  EXPECT_TRUE(same_bits(gradient, torch::autograd::grad({layer(x).sum()}, {x})[0]));
}

// test_checkpoint_not_preserve_rng_state_and_without_reentrant, test_checkpoint_rng_cpu: dropout, five times.
TEST_P(BothModes, PytorchCheckpointRngCpu) {
  for (int repeat = 0; repeat < 5; ++repeat) {
    const at::Tensor x = torch::randn({20000}, at::requires_grad());
    const auto drop = [](const at::Tensor& t) { return torch::dropout(torch::dropout(t, 0.5, true), 0.5, true); };
    const at::Tensor state = at::globalContext().defaultGenerator(testing::test_device()).get_state();
    const at::Tensor plain = torch::autograd::grad({drop(x).sum()}, {x})[0];
    const at::Tensor after = at::globalContext().defaultGenerator(testing::test_device()).get_state();
    at::Generator generator = at::globalContext().defaultGenerator(testing::test_device());
    generator.set_state(state);
    const at::Tensor other = torch::autograd::grad({checkpoint(options(), drop, x).sum()}, {x})[0];
    EXPECT_TRUE(same_bits(plain, other));
    EXPECT_TRUE(same_bits(after, at::globalContext().defaultGenerator(testing::test_device()).get_state()));
  }
}

// test_checkpoint_non_tensor_inputs_outputs: (scale, t4, None, True, t5, "bar", t1) go through; a second backward
// fails.
TEST_P(BothModes, PytorchCheckpointNonTensorInputsOutputs) {
  const at::Tensor t1 = torch::rand({10}, at::requires_grad()), t2 = torch::rand({10}, at::requires_grad()),
                   t3 = torch::rand({10});
  const auto call = [](at::Tensor a, at::Tensor b, double scale, at::Tensor c) {
    const at::Tensor t4 = a + b * c, t5 = a * b + c;
    return std::tuple(scale * 2, t4 * scale, std::optional<at::Tensor>(), true, t5 * scale, std::string("bar"), a);
  };
  const auto out = checkpoint(options(), call, t1, t2, 10.0, t3);
  EXPECT_EQ(std::get<0>(out), 20);
  EXPECT_FALSE(std::get<2>(out).has_value());
  EXPECT_TRUE(std::get<3>(out));
  EXPECT_EQ(std::get<5>(out), "bar");
  const at::Tensor sum = (std::get<1>(out) + std::get<4>(out)).sum();
  sum.backward();
  const auto plain = call(t1, t2, 10.0, t3);
  EXPECT_TRUE(same_bits(t1.grad(), torch::autograd::grad({(std::get<1>(plain) + std::get<4>(plain)).sum()}, {t1})[0]));
  try {
    sum.backward();
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("Trying to backward through the graph a second time"), std::string::npos);
  }
}

// test_checkpoint_module_list, test_checkpoint_sequential_*: a torch::nn::Sequential with AnyModules inside.
TEST_P(BothModes, PytorchCheckpointSequentialOfAnyModules) {
  nn::Sequential net(nn::Linear(6, 8), nn::Functional(torch::tanh), nn::Linear(8, 8), nn::ReLU(), nn::Linear(8, 2));
  const at::Tensor x = torch::randn({3, 6}, at::requires_grad());
  const at::Tensor plain = torch::autograd::grad({net->forward(x).sum()}, {x})[0];
  for (std::int64_t segments = 1; segments <= 5; ++segments) {
    const at::Tensor y = checkpoint_sequential(*net, segments, x, options());
    EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0])) << segments;
  }
  EXPECT_THROW(checkpoint_sequential(*net, 6, x, options()), UsageError);
}

// test/test_autograd.py, test_checkpointing_without_reentrant_with_context_fn and friends: no differentiable output.
TEST_P(BothModes, PytorchCheckpointWithoutADifferentiableOutput) {
  const at::Tensor x = torch::randn({3}, at::requires_grad());
  EXPECT_FALSE(checkpoint(
                   options(), [](const at::Tensor& t) { return t.detach().sin(); }, x)
                   .requires_grad());
  const auto mixed = checkpoint(
      options(), [](const at::Tensor& t) { return std::pair(t.sin(), t.argmax()); }, x);
  mixed.first.sum().backward();
  EXPECT_TRUE(same_bits(x.grad(), x.detach().cos()));
}

/// Reads what it saved twice, as test_checkpointing_without_reentrant_... "already been unpacked once" does. Here that
/// is allowed.
struct ReadsTwice : torch::autograd::Function<ReadsTwice> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.sin();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor once = context->get_saved_variables()[0];
    const at::Tensor again = context->get_saved_variables()[0];
    return {gradients[0] * once.cos() + 0 * again};
  }
};

TEST_P(BothModes, PytorchSavedTensorsReadTwice) {
  const at::Tensor x = torch::randn({3}, at::requires_grad());
  const auto call = [](const at::Tensor& t) { return ReadsTwice::apply(t * 2); };
  const at::Tensor plain = torch::autograd::grad({call(x).sum()}, {x})[0];
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({checkpoint(options(), call, x).sum()}, {x})[0]));
}

// test_checkpointing_without_reentrant_saved_object_identity: an input that is no result is not copied.
TEST_P(BothModes, PytorchSavedObjectIdentity) {
  static const void* seen = nullptr;
  struct Looks : torch::autograd::Function<Looks> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& y) {
      context->save_for_backward({x});
      return y.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list gradients) {
      seen = context->get_saved_variables()[0].const_data_ptr();
      return {at::Tensor(), gradients[0]};
    }
  };
  const at::Tensor constant = torch::ones({3}), x = torch::ones({3}, at::requires_grad());
  checkpoint(
      options(), [&](const at::Tensor& t) { return Looks::apply(constant, t); }, x)
      .sum()
      .backward();
  EXPECT_EQ(seen, constant.const_data_ptr());
}

// test_checkpointing_without_reentrant_parameter_used_in_an_out: hooks on a leaf that is used inside and outside fire
// once; so does accelerate#389's "mark a variable ready only once".
TEST_P(BothModes, PytorchParameterUsedInAndOut) {
  const at::Tensor w = torch::randn({10, 10}, at::requires_grad());
  int fired = 0, accumulated = 0;
  w.register_hook([&](const at::Tensor& g) { return ++fired, g; });
  struct Count final : torch::autograd::PostAccumulateGradHook {
    explicit Count(int& n) : count(n) {}
    void operator()(const torch::autograd::Variable&) override { ++count; }
    int& count;
  };
  torch::autograd::impl::set_post_acc_grad_hooks(w, std::make_unique<Count>(accumulated));
  const at::Tensor x = torch::rand({10, 10}, at::requires_grad());
  const at::Tensor h = (w * x).sum();
  const at::Tensor out = checkpoint(
      options(), [&](const at::Tensor& t) { return t.mm(w).sin(); }, h.expand({10, 10}));
  out.sum().backward();
  EXPECT_EQ(fired, 1);
  EXPECT_EQ(accumulated, 1);
}

// test_checkpoint_graph_execution_group and #26 of the same: memory falls with every step of a chain of squares, with
// retain_graph too.
TEST_P(BothModes, PytorchMemoryFallsAlongAChain) {
  const at::Tensor x = torch::randn({1 << 16}, at::requires_grad());
  at::Tensor y = x;
  const Bytes before = testing::test_memory().stats().allocated;
  const auto square = [](const at::Tensor& t) { return t.pow(2) * t.sin(); };
  for (int i = 0; i < 4; ++i) y = checkpoint(options(), square, y);
  const at::Tensor loss = y.sum();
  y = at::Tensor();
  const Bytes forward = testing::test_memory().stats().allocated - before;
  EXPECT_LE(forward, 4 * (Bytes{4} << 16) + 64_KiB);  // inputs of the four
  const auto first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
  EXPECT_LE(testing::test_memory().stats().allocated - before, forward + (Bytes{4} << 16) + 64_KiB);
}

// test_checkpointing_without_reentrant_with_autocast, pytorch#141896: the cache of cast weights.
TEST_P(BothModes, PytorchAutocastAndItsCache) {
  const at::Tensor w = torch::randn({8, 8}, at::requires_grad()), x = torch::randn({4, 8}, at::requires_grad());
  const c10::DeviceType device = testing::test_device().type();
  const auto run = [&](bool checkpointed) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::increment_nesting();
    const auto call = [&](const at::Tensor& t) { return torch::linear(t, w).tanh(); };
    // The weight is in the cache before the second one runs.
    at::Tensor y = checkpointed ? checkpoint(options(), call, x) : call(x);
    y = checkpointed ? checkpoint(options(), call, y) : call(y);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device, false);
    return torch::autograd::grad({y.to(at::kFloat).sum()}, {x, w});
  };
  const auto plain = run(false), other = run(true);
  EXPECT_TRUE(same_bits(plain[0], other[0]));
  EXPECT_TRUE(same_bits(plain[1], other[1]));
}

// Issue pytorch#96136: running statistics are updated once. A rerun calls the module twice, and says so in its
// contract.
TEST(CheckpointCases, Pytorch96136BatchNormStatisticsOnce) {
  nn::BatchNorm1d norm(4), reference(4);
  const at::Tensor x = torch::randn({8, 4}, at::requires_grad());
  checkpoint([&](const at::Tensor& t) { return norm(t).sin(); }, x).sum().backward();
  reference(x).sin().sum().backward();
  EXPECT_TRUE(same_bits(norm->running_mean, reference->running_mean));
  EXPECT_TRUE(same_bits(norm->running_var, reference->running_var));
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 1);
}

// Observers of quantization-aware training: their ranges move once a step.
TEST(CheckpointCases, FakeQuantObserversMoveOnce) {
  struct Ranges {
    at::Tensor on = torch::ones({1}, at::kLong), low = torch::zeros({1}), high = torch::ones({1}),
               scale = torch::ones({1}), zero = torch::zeros({1}, at::kInt);
  };
  const at::Tensor x = torch::randn({64}, at::requires_grad());
  const auto quantized = [&](Ranges& r, const at::Tensor& t) {
    return at::fused_moving_avg_obs_fake_quant(t * 3, r.on, r.on, r.low, r.high, r.scale, r.zero, 0.01, 0, 255, 0,
                                               false, false)
        .sin();
  };
  Ranges plain_ranges, ranges;
  const at::Tensor plain = torch::autograd::grad({quantized(plain_ranges, x).sum()}, {x})[0];
  const at::Tensor y = checkpoint([&](const at::Tensor& t) { return quantized(ranges, t); }, x);
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0]));
  EXPECT_TRUE(same_bits(plain_ranges.low, ranges.low));
  EXPECT_TRUE(same_bits(plain_ranges.high, ranges.high));
  EXPECT_TRUE(same_bits(plain_ranges.scale, ranges.scale));
}

// pytorch#193671: RReLU draws, and saves, its slopes.
TEST_P(BothModes, Pytorch193671RandomizedLeakyRelu) {
  const at::Tensor x = torch::randn({1000}, at::requires_grad());
  const auto call = [](const at::Tensor& t) { return torch::rrelu(t * 2, 0.1, 0.3, true).sin(); };
  const auto gradient = [&](bool checkpointed) {
    torch::manual_seed(5);
    return torch::autograd::grad({(checkpointed ? checkpoint(options(), call, x) : call(x)).sum()}, {x})[0];
  };
  EXPECT_TRUE(same_bits(gradient(false), gradient(true)));
}

// NeMo Automodel#3325: routing that would come out otherwise the second time. A replay does not route again.
TEST(CheckpointCases, NemoAutomodel3325RoutingOfExperts) {
  const at::Tensor x = torch::randn({16, 4}, at::requires_grad()), a = torch::randn({4, 4}), b = torch::randn({4, 4});
  int calls = 0;
  const auto route = [&](const at::Tensor& t) {
    const at::Tensor chosen = (t.detach().select(1, 0) + (++calls - 1) * 100.0) > 0;  // drifts from call to call
    return torch::where(chosen.unsqueeze(1), t.mm(a).sin(), t.mm(b).cos());
  };
  const at::Tensor plain = torch::autograd::grad({route(x).sum()}, {x})[0];
  calls = 0;
  const at::Tensor y = checkpoint(route, x);
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0]));
  EXPECT_EQ(calls, 1);
}

// Weights changed between forward and recompute: silent elsewhere.
TEST_P(BothModes, WeightChangedBetweenForwardAndBackward) {
  const at::Tensor w = torch::randn({4}, at::requires_grad()), x = torch::randn({4}, at::requires_grad());
  const at::Tensor y = checkpoint(
      options(), [&](const at::Tensor& t) { return (t * w).sin(); }, x);
  {
    const torch::NoGradGuard no_grad;
    w.add_(1);
  }
  EXPECT_THROW(y.sum().backward(), Error);
}

// test_checkpoint_wrapper_parity of FSDP's checkpoint_wrapper: names with and without the wrapper are the same.
struct BlockImpl : nn::Module {
  BlockImpl() : linear(register_module("linear", nn::Linear(4, 4))), norm(register_module("norm", nn::BatchNorm1d(4))) {
    scale = register_parameter("scale", torch::ones({4}));
  }
  at::Tensor forward(at::Tensor x) { return norm(linear(x)) * scale; }
  nn::Linear linear{nullptr};
  nn::BatchNorm1d norm{nullptr};
  at::Tensor scale;
};

TEST_P(BothModes, CheckpointWrapperLeavesNamesAlone) {
  const auto inner = std::make_shared<BlockImpl>();
  CheckpointedImpl<BlockImpl> wrapped(inner, options());
  const auto names = [](const nn::Module& m) {
    std::vector<std::string> all = m.named_parameters().keys();
    for (const auto& b : m.named_buffers().keys()) all.push_back(b);
    return all;
  };
  EXPECT_EQ(names(*inner), names(wrapped));
  const at::Tensor x = torch::randn({8, 4}, at::requires_grad());
  const at::Tensor y = wrapped.forward(x);
  const at::Tensor gradient = torch::autograd::grad({y.sin().sum()}, {x})[0];
  EXPECT_TRUE(same_bits(gradient, torch::autograd::grad({inner->forward(x).sin().sum()}, {x})[0]));
  inner->norm->eval();
  EXPECT_FALSE(CheckpointedImpl<BlockImpl>(inner, options()).inner()->norm->is_training());
  wrapped.eval();
  EXPECT_FALSE(inner->norm->is_training());
  wrapped.to(at::kDouble);
  EXPECT_EQ(inner->scale.scalar_type(), at::kDouble);
}

// test_checkpoint_partial_grad, GraphExecGroup: several disjoint backward passes over one checkpoint.
TEST_P(BothModes, PytorchSeveralDisjointBackwards) {
  const at::Tensor x = torch::randn({6}, at::requires_grad());
  const auto call = [](const at::Tensor& t) { return std::pair(t.sin().exp(), t.cos().tanh()); };
  const auto plain = call(x);
  const auto other = checkpoint(options(), call, x);
  EXPECT_TRUE(same_bits(torch::autograd::grad({plain.first.sum()}, {x})[0],
                        torch::autograd::grad({other.first.sum()}, {x})[0]));
  EXPECT_TRUE(same_bits(torch::autograd::grad({plain.second.sum()}, {x})[0],
                        torch::autograd::grad({other.second.sum()}, {x})[0]));
}

// DeepSpeed, Unsloth: an exception in the middle of recomputation leaves global state as it was.
TEST_P(BothModes, DeepspeedExceptionWhileRecomputing) {
  const at::Tensor x = torch::randn({6}, at::requires_grad());
  struct Fails : torch::autograd::Function<Fails> {
    static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& t) {
      context->save_for_backward({t});
      return t.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                   torch::autograd::variable_list) {
      context->get_saved_variables();
      throw std::runtime_error("in the middle");
    }
  };
  const Bytes before = testing::test_memory().stats().allocated;
  {
    const at::Tensor y = checkpoint(
        options(), [](const at::Tensor& t) { return Fails::apply(t.sin().exp()).cos(); }, x);
    const at::Tensor random = at::globalContext().defaultGenerator(testing::test_device()).get_state();
    EXPECT_THROW(y.sum().backward(), std::runtime_error);
    EXPECT_TRUE(same_bits(random, at::globalContext().defaultGenerator(testing::test_device()).get_state()));
  }
  x.mutable_grad() = at::Tensor();
  EXPECT_EQ(testing::test_memory().stats().allocated, before);
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  const at::Tensor z = checkpoint(
      options(), [](const at::Tensor& t) { return t.sin().exp(); }, x);
  EXPECT_NO_THROW(z.sum().backward());
}

TEST_P(BothModes, InferenceModeIsAPlainCall) {
  const c10::InferenceMode inference;
  const at::Tensor x = torch::randn({3});
  EXPECT_TRUE(same_bits(checkpoint(
                            options(), [](const at::Tensor& t) { return t.sin(); }, x),
                        x.sin()));
}

}  // namespace
}  // namespace snug
