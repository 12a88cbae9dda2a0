// The simulated accelerator itself: the CPU's bits, memory and streams of its own, and what goes wrong on a device that
// is used wrongly.
#include "tests/device/simulated_device.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>

#include "snug/memory/device_memory.h"
#include "snug/memory/out_of_budget.h"
#include "snug/replay/record_step.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kInstalled = (install_simulated_devices(), true);
const c10::Device kFirst(kSimulated, 0), kSecond(kSimulated, 1);

at::TensorOptions on(c10::Device device) { return at::TensorOptions().device(device); }

/// Convolution, BatchNorm, an in-place ReLU, attention, dropout.
struct Net : torch::nn::Module {
  Net() {
    register_module("convolution", convolution);
    register_module("norm", norm);
    register_module("attention", attention);
    register_module("hidden", hidden);
    register_module("out", out);
  }
  at::Tensor forward(at::Tensor x) {
    x = norm(convolution(x)).relu_();
    at::Tensor places = x.flatten(2).permute({2, 0, 1});
    places = std::get<0>(attention(places, places, places));
    x = x.flatten(1) + places.permute({1, 2, 0}).flatten(1);
    return out(torch::dropout(torch::gelu(hidden(x)), 0.3, is_training()));
  }
  torch::nn::Conv2d convolution{torch::nn::Conv2dOptions(3, 8, 3).padding(1)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::MultiheadAttention attention{torch::nn::MultiheadAttentionOptions(8, 2).dropout(0.1)};
  torch::nn::Linear hidden{8 * 64, 32}, out{32, 5};
};

at::Generator generator_of(c10::Device device) {
  return device.is_cpu() ? at::detail::getDefaultCPUGenerator() : simulated_generator(device.index());
}

/// Losses, gradients and buffers of two steps.
std::vector<at::Tensor> two_steps(c10::Device device) {
  torch::manual_seed(1);
  const auto net = std::make_shared<Net>();
  const at::Tensor x = torch::randn({4, 3, 8, 8}).to(device), y = torch::randint(0, 5, {4}).to(device);
  net->to(device);
  generator_of(device).set_current_seed(7);
  std::vector<at::Tensor> found;
  for (int i = 0; i < 2; ++i) {
    net->zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(net->forward(x), y);
    loss.backward();
    found.push_back(loss.detach().cpu());
    for (const at::Tensor& p : net->parameters()) found.push_back(p.grad().cpu());
  }
  for (const at::Tensor& b : net->buffers()) found.push_back(b.cpu());
  return found;
}

TEST(SimulatedDevice, GivesTheBitsOfTheCpu) {
  const Bytes before = settled(memory::device_memory(kSecond));
  expect_same(two_steps(c10::kCPU), two_steps(kSecond));
  EXPECT_EQ(settled(memory::device_memory(kSecond)), before);
  EXPECT_GT(memory::device_memory(kSecond).stats().allocated_peak, 20_KiB);
}

TEST(SimulatedDevice, GivesTheSameBitsWheneverItsStreamsComeToIt) {
  const std::vector<at::Tensor> expected = two_steps(c10::kCPU);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const OrderOfChance order(seed);
    expect_same(expected, two_steps(kFirst));
  }
}

TEST(SimulatedDevice, CountsAndLimitsItsMemory) {
  memory::DeviceMemory& memory = memory::device_memory(kFirst);
  const Bytes before = settled(memory);
  const at::Tensor some = torch::ones({1000}, on(kFirst));
  EXPECT_EQ(memory.stats().allocated - before, 4096);
  EXPECT_EQ(memory::device_memory(kSecond).stats().limit, std::nullopt);
  memory.set_limit(memory.stats().allocated + 1000);
  std::string refusal;
  try {
    (void)torch::ones({1 << 20}, on(kFirst));
  } catch (const c10::OutOfMemoryError&) {
    refusal = "one that cuDNN catches, to go on with another algorithm and its bits";
  } catch (const std::exception& error) {
    refusal = memory::refusal_in(std::current_exception()) ? error.what() : "another";
  }
  EXPECT_NE(refusal.find("4.0 MiB"), std::string::npos) << refusal;
  (void)torch::ones({1 << 20}, on(kSecond));  // has its own
  memory.set_limit(std::nullopt);
  EXPECT_EQ(memory.stats().allocated - before, 4096);
}

TEST(SimulatedDevice, AdoptsWhatItsSupplyHandedOutUncounted) {
  memory::DeviceMemory& memory = memory::device_memory(kFirst);
  const memory::Stats before = memory.stats();
  const auto weights = [&] { return memory.stats().by_tag[static_cast<std::size_t>(memory::Tag::Weights)]; };
  const Bytes weights_before = weights();
  {
    c10::Storage storage(c10::Storage::use_byte_size_t(), 1000, simulated_supply(0).take(1000));
    EXPECT_EQ(memory.stats().allocated, before.allocated) << "as an allocator of another has it";
    const void* const data = storage.data();
    memory::device_memory(kSecond).adopt(storage);
    EXPECT_EQ(memory.stats().allocated, before.allocated) << "it is none of another device's";
    for (int i = 0; i < 2; ++i) {
      memory.adopt(storage);
      EXPECT_EQ(memory.stats().allocated - before.allocated, 1024) << "once";
    }
    EXPECT_EQ(weights() - weights_before, 1024);
    EXPECT_EQ(storage.data(), data);
    memory.retag(storage, memory::Tag::Gradients);
    EXPECT_EQ(weights(), weights_before);
    EXPECT_FALSE(memory.allocated_since(storage, 0)) << "it was there before all that is counted";
  }
  EXPECT_EQ(memory.stats().allocated, before.allocated);
  const std::int64_t taken = simulated_supply(0).taken();
  const at::Tensor same = at::empty({1000}, on(kFirst).dtype(at::kByte));
  EXPECT_EQ(memory.stats().mapped, before.mapped + 1024) << "the freed block serves again";
  EXPECT_EQ(simulated_supply(0).taken(), taken + 1);
}

TEST(SimulatedDevice, UsesWhatIsFreeAgainAndGivesItBack) {
  memory::DeviceMemory& memory = memory::device_memory(kFirst);
  settled(memory);
  memory.release_cached();
  const Bytes before = memory.stats().mapped;
  const void* first = torch::ones({1000}, on(kFirst)).data_ptr();
  EXPECT_EQ(torch::zeros({1000}, on(kFirst)).data_ptr(), first);
  EXPECT_EQ(memory.stats().mapped - before, 4096);
  memory.release_cached();
  EXPECT_EQ(memory.stats().mapped, before);
}

/// The first number of what a copy in another stream has brought, with and without waiting for it.
struct Copied {
  float early = 0, late = 0;
};

Copied copied_under(std::uint64_t seed, bool waits) {
  const OrderOfChance order(seed);
  const at::Tensor from = torch::ones({1000}, on(kFirst));
  const at::Tensor to = torch::zeros({1000}, at::TensorOptions().pinned_memory(true));
  const c10::impl::VirtualGuardImpl devices(kSimulated);
  const c10::Stream side = devices.getNewStream(kFirst);
  c10::Event made(kSimulated), copied(kSimulated);
  made.record(devices.getStream(kFirst));
  {
    const c10::StreamGuard in(side);
    if (waits) made.block(side);
    to.copy_(from, /*non_blocking=*/true);
    copied.record(side);
  }
  Copied found{.early = to[0].item<float>()};
  copied.synchronize();
  found.late = to[0].item<float>();
  return found;
}

TEST(SimulatedDevice, CopiesEndLaterAndReadWhatIsThereThen) {
  int early = 0, wrong = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Copied waited = copied_under(seed, true);
    early += waited.early == 1 ? 0 : 1;
    EXPECT_EQ(waited.late, 1) << seed;
    wrong += copied_under(seed, false).late == 1 ? 0 : 1;
  }
  EXPECT_GT(early, 10) << "a host that does not wait reads what was there before";
  EXPECT_GT(wrong, 10) << "and so does a stream";
}

/// What another stream has made of a block that was freed while it was under way.
bool reads_freed_block(std::uint64_t seed, bool recorded) {
  const OrderOfChance order(seed);
  const c10::impl::VirtualGuardImpl devices(kSimulated);
  const c10::Stream side = devices.getNewStream(kFirst);
  at::Tensor x = torch::ones({1000}, on(kFirst)), y;
  c10::Event made(kSimulated);
  made.record(devices.getStream(kFirst));
  {
    const c10::StreamGuard in(side);
    made.block(side);
    y = x + 1;
  }
  if (recorded) x.record_stream(side);
  x = at::Tensor();
  const at::Tensor next = torch::zeros({1000}, on(kFirst));
  devices.synchronizeStream(side);
  return y.cpu()[0].item<float>() == 2;
}

TEST(SimulatedDevice, MemoryThatAnotherStreamUsesHasToBeKeptForIt) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    EXPECT_TRUE(reads_freed_block(seed, true)) << seed;
    wrong += reads_freed_block(seed, false) ? 0 : 1;
  }
  EXPECT_GT(wrong, 10);
}

TEST(SimulatedDevice, ItsClockCountsWhatCopiesAndKernelsTake) {
  set_simulated_speed({.bytes_per_second = 4e9, .copy_latency = 0, .kernel_seconds = 1e-3});
  const c10::impl::VirtualGuardImpl devices(kSimulated);
  const c10::Stream stream = devices.getStream(kFirst);
  const at::Tensor x = torch::ones({1000 * 1000}, on(kFirst));
  c10::Event begin(kSimulated, c10::EventFlag::BACKEND_DEFAULT), middle(kSimulated, c10::EventFlag::BACKEND_DEFAULT),
      end(kSimulated, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  const at::Tensor y = x + 1;
  middle.record(stream);
  (void)y.cpu();
  end.record(stream);
  EXPECT_NEAR(begin.elapsedTime(middle), 1, 1e-9);
  EXPECT_NEAR(middle.elapsedTime(end), 1, 1e-9);
  set_simulated_speed({});
}

TEST(SimulatedDevice, IsTimedByItsEventsAndNotByTheHost) {
  const SimulatedSpeed before = simulated_speed();
  set_simulated_speed({.kernel_seconds = 0.25});
  const at::Tensor w = torch::randn({8, 8}, on(kFirst)).requires_grad_(), x = torch::randn({8, 8}, on(kFirst));
  const auto recorded = replay::record_step([&] { return torch::tanh(torch::mm(x, w)).sum(); },
                                            memory::device_memory(kFirst), {.update = [&] {
                                              const torch::NoGradGuard none;
                                              w.add_(1);
                                            }});
  set_simulated_speed(before);
  ASSERT_GE(recorded.graph.ops.size(), 3U);
  for (const plan::OpInfo& op : recorded.graph.ops) EXPECT_DOUBLE_EQ(op.seconds, 0.25) << op.name;
  const double kernels = recorded.graph.step_seconds / 0.25;
  EXPECT_NEAR(kernels, std::round(kernels), 1e-6);
  EXPECT_GT(kernels, 5) << "backward has some too";
  EXPECT_NEAR(recorded.graph.update_seconds, 0.25, 1e-9);
  double sum = 0;
  for (const plan::Event& event : recorded.graph.events) sum += event.seconds;
  EXPECT_NEAR(sum, recorded.graph.step_seconds, 1e-6);
}

TEST(SimulatedDevice, FailsWhereItIsTold) {
  simulated_supply(0).fail(SimulatedSupply::Failure{.after = 1, .for_good = true});
  const at::Tensor first = torch::ones({10}, on(kFirst));
  EXPECT_ANY_THROW((void)torch::ones({10}, on(kFirst)));
  simulated_supply(0).fail(std::nullopt);
  fail_copy(0);
  EXPECT_ANY_THROW((void)first.cpu());
  EXPECT_EQ(first.cpu()[9].item<float>(), 1);
}

TEST(SimulatedDevice, DrawsFromItsOwnGeneratorWhateverTheOperatorIsTold) {
  const auto dropped = [](c10::Device device) {
    generator_of(device).set_current_seed(3);
    return std::get<0>(at::native_dropout(at::ones({64}, on(device)), 0.5, true)).cpu();
  };
  const at::Tensor expected = dropped(c10::kCPU), of_cpu = generator_of(c10::kCPU).get_state();
  EXPECT_TRUE(at::equal(dropped(kFirst), expected));
  EXPECT_TRUE(at::equal(generator_of(c10::kCPU).get_state(), of_cpu));
}

TEST(SimulatedDevice, RefusesOperandsOfTwoDevices) {
  EXPECT_THROW((void)(torch::ones({2}, on(kFirst)) + torch::ones({2}, on(kSecond))), c10::Error);
  EXPECT_EQ((torch::ones({2}, on(kFirst)).to(kSecond) + torch::ones({2}, on(kSecond))).cpu()[1].item<float>(), 2);
}

}  // namespace
}  // namespace snug::testing
