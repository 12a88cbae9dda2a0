// Tensors that no value of a tape stands for: what reads them runs once, as nothing would tell that they changed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using ::testing::HasSubstr;
using testing::same_bits;

/// The gradients of `weight`, of plain steps and of those whose values are all made again.
void expect_same_gradients(const at::Tensor& weight, const std::function<at::Tensor()>& run) {
  run().backward();
  const at::Tensor expected = std::exchange(weight.mutable_grad(), at::Tensor());
  const Region region(Recompute{});
  run().backward();
  EXPECT_GT(region.replayed_ops(), 0) << "what follows can be made again";
  EXPECT_TRUE(same_bits(weight.grad(), expected));
}

at::Tensor sparse() { return torch::eye(6).mul(3).to_sparse(); }

TEST(BeyondValues, ASparseMatrixThatIsWrittenInTheStepIsReadAsItWas) {
  SNUG_ONLY_ON_THE_CPU("sparse and quantized tensors");
  const at::Tensor x = torch::randn({6, 5}), weight = torch::randn({5, 4}).requires_grad_();
  const auto run = [&] {
    const at::Tensor a = sparse();
    const at::Tensor y = at::mm(at::mm(a, x).sin(), weight).cos();
    a.mul_(2);
    return y.sum();
  };
  expect_same_gradients(weight, run);
}

TEST(BeyondValues, WhatAliasesTheirMemoryIsTheProgramsOwn) {
  SNUG_ONLY_ON_THE_CPU("sparse and quantized tensors");
  const at::Tensor weight = torch::randn({6}).requires_grad_();
  const auto run = [&](const at::Tensor& a) {
    const at::Tensor values = a._values();
    values.mul_(2);
    return (values * weight).sin().sum();
  };
  const at::Tensor plain = sparse(), planned = sparse();
  run(plain).backward();
  const at::Tensor expected = std::exchange(weight.mutable_grad(), at::Tensor());
  const Region region(Recompute{});
  run(planned).backward();
  EXPECT_GT(region.replayed_ops(), 0);
  EXPECT_TRUE(same_bits(planned._values(), plain._values()));
  EXPECT_TRUE(same_bits(weight.grad(), expected));
}

TEST(BeyondValues, OneThatWasSavedAndIsWrittenBeforeBackwardIsRefused) {
  SNUG_ONLY_ON_THE_CPU("sparse and quantized tensors");
  const at::Tensor weight = torch::randn({6, 4}).requires_grad_(), a = sparse();
  const Region region(Recompute{});
  const at::Tensor loss = at::mm(a, weight).sum();
  a.mul_(2);
  try {
    loss.backward();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("a tensor of shape [6, 6], which an operator saved for its gradient, was modified"));
  }
}

TEST(BeyondValues, QuantizedWeightsThatAreReplacedAreReadAsTheyWere) {
  SNUG_ONLY_ON_THE_CPU("sparse and quantized tensors");
  const at::Tensor weight = torch::randn({4, 4}).requires_grad_(), other = torch::randn({4, 4}) * 7;
  const auto run = [&] {
    const at::Tensor q = at::quantize_per_tensor(torch::eye(4), 0.1, 10, at::kQUInt8);
    const at::Tensor y = (q.dequantize() * weight).sin();
    q.copy_(other);
    return y.sum();
  };
  expect_same_gradients(weight, run);
}

/// The sum of all, which a dictionary and lists of lists have.
at::Tensor total(const c10::Dict<std::string, at::Tensor>& named, const c10::List<c10::List<at::Tensor>>& nested) {
  at::Tensor sum = at::zeros({});
  for (const auto& item : named) sum = sum + item.value().sum();
  for (const c10::List<at::Tensor>& list : nested) {
    for (const at::Tensor& tensor : list) sum = sum + tensor.sum();
  }
  return sum;
}

TORCH_LIBRARY(snug_beyond_values_test, library) {
  library.def("total(Dict(str, Tensor) named, Tensor[][] nested) -> Tensor");
}
TORCH_LIBRARY_IMPL(snug_beyond_values_test, CompositeExplicitAutograd, library) { library.impl("total", total); }

TEST(BeyondValues, TensorsInDictionariesAndListsOfListsAreReadAsTheyWere) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("snug_beyond_values_test::total", "").typed<decltype(total)>();
  const at::Tensor weight = torch::randn({4}).requires_grad_();
  const auto run = [&] {
    const at::Tensor a = torch::ones({4}), b = torch::ones({3});
    c10::Dict<std::string, at::Tensor> named;
    named.insert("a", a);
    const c10::List<c10::List<at::Tensor>> nested({c10::List<at::Tensor>({b})});
    const at::Tensor y = (op.call(named, nested) * weight).sin();
    a.mul_(2);
    b.mul_(3);
    return y.sum();
  };
  expect_same_gradients(weight, run);
}

}  // namespace
}  // namespace snug
