#include "snug/described/described_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/described/new_tensors.h"
#include "snug/memory/device_memory.h"

namespace snug::described {
namespace {

const DeviceDescription kCard{.name = "card",
                              .flops = 100e12,
                              .flops_of_fp32 = 20e12,
                              .bytes_per_second = 1e12,
                              .memory = 4_GiB + 512_MiB,
                              .host_bytes_per_second = 10e9};

class DescribedDevice : public ::testing::Test {
 protected:
  const c10::Device device = install(kCard);
  memory::DeviceMemory& memory = memory::device_memory(device);

  [[nodiscard]] at::Tensor tensor(at::IntArrayRef sizes, at::ScalarType type = at::kFloat) const {
    return at::empty(sizes, at::TensorOptions(device).dtype(type));
  }
  [[nodiscard]] static double seconds_of(const std::function<void()>& work) {
    const double before = stream_clock().when_done();
    work();
    return stream_clock().when_done() - before;
  }
};

using Call = std::function<std::vector<at::Tensor>(c10::Device)>;

/// Of a function of tensors: what it makes, and the gradients of its operands.
Call with_gradients(std::vector<std::vector<std::int64_t>> operands,
                    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& call) {
  return [operands = std::move(operands), call](c10::Device device) {
    std::vector<at::Tensor> in, all;
    for (const auto& sizes : operands) in.push_back(at::ones(sizes, at::TensorOptions(device)).requires_grad_());
    all.push_back(call(in));
    all.front().sum().backward();
    for (const at::Tensor& one : in) all.push_back(one.grad());
    return all;
  };
}

at::Tensor indices(c10::Device device) { return at::zeros({2, 3}, at::TensorOptions(device).dtype(at::kLong)); }

std::vector<std::pair<std::string, Call>> calls() {
  namespace F = torch::nn::functional;
  using All = std::vector<at::Tensor>;
  return {
      {"linear", with_gradients({{2, 3, 8}, {16, 8}, {16}}, [](const All& a) { return at::linear(a[0], a[1], a[2]); })},
      {"layer norm",
       with_gradients({{2, 3, 8}, {8}, {8}}, [](const All& a) { return at::layer_norm(a[0], {8}, a[1], a[2]); })},
      {"attention",
       with_gradients(
           {{2, 4, 3, 8}, {2, 4, 3, 8}, {2, 4, 3, 8}},
           [](const All& a) { return at::scaled_dot_product_attention(a[0], a[1], a[2], {}, 0, true).contiguous(); })},
      {"embedding", with_gradients({{9, 8}}, [](const All& a) { return at::embedding(a[0], indices(a[0].device())); })},
      {"dropout", with_gradients({{5, 7}}, [](const All& a) { return at::dropout(a[0], 0.5, true); })},
      {"gelu", with_gradients({{5, 7}}, [](const All& a) { return at::gelu(a[0], "tanh"); })},
      {"softmax", with_gradients({{5, 7}}, [](const All& a) { return at::softmax(a[0], -1); })},
      {"cross entropy",
       with_gradients({{6, 7}},
                      [](const All& a) { return at::cross_entropy_loss(a[0], indices(a[0].device()).view(-1)); })},
      {"where", with_gradients({{5, 1}, {7}}, [](const All& a) { return at::where(a[0] > 0, a[0], a[1]); })},
      {"views", with_gradients({{4, 6}},
                               [](const All& a) {
                                 return a[0].view({2, 2, 6}).transpose(0, 2).narrow(0, 1, 3) * 2;
                               })},
      {"index", with_gradients({{9, 8}}, [](const All& a) { return a[0].index({indices(a[0].device())}); })},
      {"cat", with_gradients({{2, 3}, {4, 3}},
                             [](const All& a) {
                               return at::cat({a[0], a[1]});
                             })},
      {"bmm", with_gradients({{2, 3, 4}, {2, 4, 5}}, [](const All& a) { return at::matmul(a[0], a[1]); })},
      {"index_select",
       [](c10::Device device) {
         return std::vector{at::ones({4, 5}, at::TensorOptions(device)).index_select(1, indices(device).view(-1))};
       }},
      {"in place",
       [](c10::Device device) {
         at::Tensor x = at::ones({4, 5}, at::TensorOptions(device));
         return std::vector{x.add_(1), x.t().mul_(2), x.fill_(3)};
       }},
      {"relu and abs", with_gradients({{5, 7}}, [](const All& a) { return at::relu(a[0]) + a[0].abs(); })},
      {"squared error", with_gradients({{5, 7}, {5, 7}}, [](const All& a) { return at::mse_loss(a[0], a[1]); })},
      {"truths",
       [](c10::Device device) {
         const at::Tensor x = at::ones({4, 1}, at::TensorOptions(device)), y = at::ones({5}, x.options());
         return std::vector{(x > 0).logical_and(y > 0), x.isnan(), (y > 0).logical_not(), x.max(),
                            std::get<0>(x.max(1))};
       }},
      {"norms",
       [](c10::Device device) {
         return at::_foreach_norm(
             {at::ones({4}, at::TensorOptions(device)), at::ones({2, 2}, at::TensorOptions(device))});
       }},
      {"resized",
       [](c10::Device device) {
         at::Tensor x = at::ones({2}, at::TensorOptions(device));
         return std::vector{x.resize_({3, 4}), at::ones({6}, x.options()).to(at::kBFloat16)};
       }},
      {"random",
       [](c10::Device device) {
         at::Tensor x = at::empty({4, 5}, at::TensorOptions(device));
         return std::vector{x.normal_(), at::randn({2}, x.options()), at::bernoulli(x.uniform_())};
       }},
  };
}

TEST_F(DescribedDevice, MakesTensorsOfTheSizesThatTheCpuMakes) {
  for (const auto& [name, call] : calls()) {
    SCOPED_TRACE(name);
    const std::vector<at::Tensor> there = call(device), here = call(c10::Device(at::kCPU));
    ASSERT_EQ(there.size(), here.size());
    for (std::size_t i = 0; i < here.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_EQ(there[i].defined(), here[i].defined());
      if (!here[i].defined()) continue;
      EXPECT_EQ(there[i].device(), device);
      EXPECT_EQ(there[i].sizes(), here[i].sizes());
      EXPECT_EQ(there[i].strides(), here[i].strides());
      EXPECT_EQ(there[i].scalar_type(), here[i].scalar_type());
    }
  }
  EXPECT_EQ(memory.stats().allocated, 0);
}

TEST_F(DescribedDevice, ViewsShareTheMemoryOfWhatTheyAreOf) {
  const at::Tensor x = tensor({8, 8}), view = x.view({4, 16}).transpose(0, 1)[3];
  EXPECT_EQ(view.storage().unsafeGetStorageImpl(), x.storage().unsafeGetStorageImpl());
  EXPECT_EQ(view.storage_offset(), 3);
  EXPECT_NE(x.storage().data(), tensor({8, 8}).storage().data());
}

TEST_F(DescribedDevice, CountsBytesAsCudasAllocatorRoundsThem) {
  const at::Tensor x = tensor({1000}), y = x + x;
  EXPECT_EQ(memory.stats().allocated, 2 * 4096);
  EXPECT_EQ(memory.rounded(513), 1024);
  EXPECT_EQ(memory.capacity().total, kCard.usable());
  EXPECT_EQ(memory.capacity().available, kCard.usable() - 2 * 4096);
  EXPECT_EQ(memory.model(), "card");
}

TEST_F(DescribedDevice, HasNoMoreMemoryThanItsDescriptionSays) {
  const at::Tensor most = tensor({kCard.usable()}, at::kByte);
  EXPECT_THROW(tensor({1}), c10::OutOfMemoryError);
  EXPECT_EQ(memory.stats().allocated, kCard.usable());
}

TEST_F(DescribedDevice, TakesTheTimeOfItsArithmeticOrOfItsMemory) {
  const at::Tensor a = tensor({4096, 4096}, at::kBFloat16), b = tensor({4096, 4096}), c = tensor({64 << 20}, at::kByte);
  const double work = 2.0 * 4096 * 4096 * 4096;
  EXPECT_DOUBLE_EQ(seconds_of([&] { at::mm(a, a); }), work / (0.8 * 100e12));
  EXPECT_DOUBLE_EQ(seconds_of([&] { at::mm(b, b); }), work / (0.8 * 20e12));
  EXPECT_NEAR(seconds_of([&] { at::add(c, c); }), 3.0 * (64 << 20) / (0.9 * 1e12), 1e-9);
  EXPECT_NEAR(seconds_of([&] { at::add(tensor({8}), 1); }), 4e-6, 1e-12);
  EXPECT_EQ(seconds_of([&] { (void)a.view({-1}).narrow(0, 3, 5); }), 0);
  EXPECT_NEAR(seconds_of([&] { (void)c.to(at::kCPU); }), 10e-6 + (64 << 20) / (0.9 * 10e9), 1e-9);
  // Half of the keys of each query.
  const at::Tensor q = tensor({1, 8, 4096, 128}, at::kBFloat16);
  const auto attend = [&](bool is_causal) {
    return seconds_of([&] { at::scaled_dot_product_attention(q, q, q, {}, 0, is_causal); });
  };
  EXPECT_DOUBLE_EQ(attend(false), 4.0 * 8 * 4096 * 4096 * 128 / (0.8 * 100e12));
  EXPECT_DOUBLE_EQ(attend(false), 2 * attend(true));
}

TEST_F(DescribedDevice, StreamsWaitForEachOtherByEvents) {
  const c10::impl::VirtualGuardImpl guard(kDescribed);
  const c10::Stream first = guard.getStream(device), second = guard.getNewStream(device);
  const at::Tensor a = tensor({4096, 4096}, at::kBFloat16);
  at::mm(a, a);
  c10::Event made(kDescribed, c10::EventFlag::BACKEND_DEFAULT), over(kDescribed, c10::EventFlag::BACKEND_DEFAULT);
  made.record(first);
  guard.exchangeStream(second);
  made.block(second);
  at::mm(a, a);
  over.record(second);
  guard.exchangeStream(first);
  EXPECT_NEAR(made.elapsedTime(over), 1e3 * 2.0 * 4096 * 4096 * 4096 / (0.8 * 100e12), 1e-6);
}

TEST_F(DescribedDevice, NumbersThatAreReadFromItAreNoneOrOne) {
  EXPECT_EQ(tensor({}).item<double>(), 0);
  EXPECT_EQ(tensor({}, at::kLong).item<std::int64_t>(), 1);
  EXPECT_FALSE(tensor({}, at::kBool).item<bool>());
  EXPECT_TRUE(at::equal(tensor({3}).to(at::kCPU), at::zeros({3})));
  EXPECT_TRUE(at::ones({3}).to(device).device().type() == kDescribed);
}

TEST_F(DescribedDevice, SaysWhatCannotBeToldWithoutContents) {
  try {
    at::nonzero(tensor({4}));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("card: what aten::nonzero makes"),
                                 ::testing::HasSubstr("without contents"), ::testing::Not(::testing::HasSubstr("\n"))));
  }
  EXPECT_THROW(at::add(tensor({4}), at::ones({4})), c10::Error) << "the CPU's";
}

TEST_F(DescribedDevice, NewTensorsAreMadeThereWhereNobodySaysWhere) {
  {
    const NewTensorsOn there(device);
    const torch::nn::Linear layer(8, 4);
    EXPECT_EQ(layer->weight.device(), device);
    EXPECT_TRUE(at::ones({2}, at::kCPU).is_cpu());
  }
  EXPECT_TRUE(at::ones({2}).is_cpu());
  torch::nn::Linear moved(8, 4);
  moved->to(device);
  EXPECT_EQ(moved->weight.device(), device);
}

TEST_F(DescribedDevice, IsAnotherOneOnceItsTensorsAreGone) {
  DeviceDescription other = kCard;
  other.name = "other";
  {
    const at::Tensor x = tensor({4});
    EXPECT_THROW(install(other), UsageError);
  }
  install(other);
  EXPECT_EQ(memory.model(), "other");
}

}  // namespace
}  // namespace snug::described
