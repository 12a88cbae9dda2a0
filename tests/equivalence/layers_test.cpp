// Every kind of operator that is hard to run twice, with everything recomputed: gradients, buffers and the random
// state afterwards are bitwise those of plain LibTorch.
#include <gtest/gtest.h>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::StepUnderTest;
namespace nn = torch::nn;

/// Runs `forward` plain, in a region that drops everything, and in sessions that checkpoint and that keep everything.
void expect_equal_when_recomputed(std::vector<std::shared_ptr<nn::Module>> modules,
                                  const std::function<at::Tensor()>& forward, std::int64_t least_replayed = 1) {
  torch::manual_seed(7);
  StepUnderTest test(std::move(modules));
  const auto plain = test.run([&] {
    const auto loss = forward();
    loss.backward();
    return loss;
  });
  std::int64_t replayed = 0;
  const auto dropped = test.run([&] {
    Region region(Recompute{});
    const at::Tensor loss = forward();
    loss.backward();  // inside the region: its operators are backward's, not the region's
    replayed = region.replayed_ops();
    return loss;
  });
  expect_same(plain, dropped);
  EXPECT_GE(replayed, least_replayed);

  auto& memory = testing::test_memory();
  const auto recorded = test.run([&] {
    replay::record_step(forward, memory);  // leaves no trace
    const auto loss = forward();
    loss.backward();
    return loss;
  });
  expect_same(plain, recorded);
  const auto planned = test.run([&] {
    auto step = replay::record_step(forward, memory);
    Session session(std::move(step), "none", std::nullopt, memory);
    return session.backward(forward);
  });
  expect_same(plain, planned);
}

struct ConvNetImpl : nn::Module {
  ConvNetImpl() {
    first = register_module("first", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(8));
    second = register_module("second", nn::Conv2d(nn::Conv2dOptions(8, 16, 3).padding(1)));
    second_norm = register_module("second_norm", nn::BatchNorm2d(16));
    head = register_module("head", nn::Linear(16 * 4 * 4, 10));
  }
  at::Tensor forward(at::Tensor x) {
    x = at::max_pool2d(norm(first(x)).relu_(), 2);
    x = second_norm(second(x));
    x.add_(0.1);
    x = at::max_pool2d(x.relu_(), 2);
    return head(torch::dropout(x.flatten(1), 0.2, is_training()));
  }
  nn::Conv2d first{nullptr}, second{nullptr};
  nn::BatchNorm2d norm{nullptr}, second_norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(ConvNet);

TEST(LayersEquivalence, ConvNetWithBatchNormInPlaceReluMaxPoolAndDropout) {
  torch::manual_seed(3);
  ConvNet net;
  const at::Tensor x = torch::randn({4, 3, 16, 16}), y = torch::randint(0, 10, {4});
  expect_equal_when_recomputed(
      {net.ptr()}, [&] { return at::cross_entropy_loss(net(x), y); }, 8);
  EXPECT_EQ(net->norm->num_batches_tracked.item<std::int64_t>(), 1) << "statistics were updated more than once";
}

TEST(LayersEquivalence, TwoLayerLstm) {
  torch::manual_seed(3);
  nn::LSTM lstm(nn::LSTMOptions(12, 16).num_layers(2).dropout(0.3));
  const at::Tensor x = torch::randn({5, 3, 12});
  expect_equal_when_recomputed({lstm.ptr()}, [&] {
    const auto [out, state] = lstm(x.mul(2.0));
    return out.pow(2).sum() + std::get<1>(state).sum();
  });
}

TEST(LayersEquivalence, MultiHeadAttentionWithDropout) {
  torch::manual_seed(3);
  nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(16, 4).dropout(0.2));
  const at::Tensor x = torch::randn({6, 2, 16});
  expect_equal_when_recomputed({attention.ptr()}, [&] {
    const auto [out, weights] = attention(x, x, x);
    return out.tanh().sum() + weights.pow(2).sum();
  });
}

TEST(LayersEquivalence, IndexSortAndWhere) {
  torch::manual_seed(3);
  nn::Linear layer(8, 8);
  const at::Tensor x = torch::randn({10, 8});
  expect_equal_when_recomputed({layer.ptr()}, [&] {
    at::Tensor h = layer(x);
    const at::Tensor rows = at::nonzero(h.sum(1) > 0).squeeze(1);
    h = h.index({rows});  // a list of optional tensors
    const auto [sorted, order] = h.sort(1);
    h = sorted + 0.01 * at::cumsum(sorted, 1);
    h = at::where(h > 0, h, h * 0.5);
    const auto parts = at::stack(h.unbind(1), 0).chunk(2, 0);
    return (parts[0] * parts[1]).exp().mean() + order.to(at::kFloat).mean();
  });
}

TEST(LayersEquivalence, InPlaceChainOnViews) {
  torch::manual_seed(3);
  nn::Linear layer(8, 8);
  const at::Tensor x = torch::randn({6, 8});
  expect_equal_when_recomputed({layer.ptr()}, [&] {
    at::Tensor h = layer(x).clone();
    h.narrow(0, 0, 3).mul_(2.0);
    h.select(1, 2).add_(1.0);
    h.t().sub_(0.5);
    h = h.sigmoid_();
    at::Tensor buffer = at::empty({6, 8});
    buffer.copy_(h.detach());
    buffer.add_(1.0);
    return (h * buffer).sum() + h.pow(3).mean();
  });
}

struct SquareFunction : torch::autograd::Function<SquareFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    return {2 * x * gradients[0]};
  }
};

TEST(LayersEquivalence, CustomAutogradFunction) {
  torch::manual_seed(3);
  nn::Linear layer(8, 8);
  const at::Tensor x = torch::randn({6, 8});
  expect_equal_when_recomputed({layer.ptr()}, [&] {
    at::Tensor h = layer(x).tanh();
    for (int i = 0; i < 3; ++i) h = SquareFunction::apply(h) + 0.5 * h;
    return h.sum();
  });
}

TEST(LayersEquivalence, LoopThatRunsADataDependentNumberOfTimes) {
  torch::manual_seed(3);
  nn::Linear layer(8, 8);
  const at::Tensor x = torch::randn({6, 8});
  expect_equal_when_recomputed({layer.ptr()}, [&] {
    at::Tensor h = layer(x);
    int runs = 0;
    while (h.abs().max().item<float>() > 0.05F && runs < 50) {
      h = at::dropout(layer(h).tanh() * 0.7, 0.1, true);
      ++runs;
    }
    EXPECT_GT(runs, 1);
    return h.pow(2).sum() + x.sum() * layer->weight.sum();
  });
}

/// Kernels of its like conjugate lazily inside: a replay that leaves that out computes something else.
TEST(LayersEquivalence, PseudoinverseOfAComplexMatrix) {
  torch::manual_seed(3);
  nn::Linear real(6, 4), imaginary(6, 4);
  const at::Tensor x = torch::randn({3, 6});
  expect_equal_when_recomputed({real.ptr(), imaginary.ptr()}, [&] {
    const at::Tensor z = torch::complex(real(x), imaginary(x));
    return torch::linalg_pinv(z * z.conj().t().mm(z).sum()).abs().sum();
  });
}

TEST(LayersEquivalence, RandomReluWritesWhatItSaved) {
  torch::manual_seed(3);
  nn::Linear layer(8, 8);
  const at::Tensor x = torch::randn({6, 8});
  expect_equal_when_recomputed({layer.ptr()}, [&] { return at::rrelu(layer(x), 0.1, 0.4, true).pow(2).sum(); });
}

TEST(LayersEquivalence, ForeachAndOutVariants) {
  torch::manual_seed(3);
  nn::Linear layer(8, 8);
  const at::Tensor x = torch::randn({6, 8});
  expect_equal_when_recomputed({layer.ptr()}, [&] {
    const at::Tensor h = layer(x);
    std::vector<at::Tensor> scales = {at::ones({6, 8}), at::full({6, 8}, 2.0)};
    at::_foreach_mul_(scales, 1.5);
    at::Tensor sum = at::empty({6, 8});
    at::add_out(sum, scales[0], scales[1]);
    return (h * sum).tanh().sum() + (h * scales[1]).exp().mean();
  });
}

}  // namespace
}  // namespace snug
