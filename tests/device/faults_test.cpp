// Memory that runs out at each allocation of a planned step, on the CPU and on an accelerator: the step is right, or
// refused, and the next one is right. And copies between a device and the host that fail.
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "snug/memory/out_of_budget.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/snug.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kInstalledForFaults = (install_simulated_devices(), true);
const c10::Device kFailing(kSimulated, 1);

using Failure = SimulatedSupply::Failure;

/// In front of the CPU's memory, which has no supply that could fail: where an allocation is to fail, there is no more
/// memory than is taken at that moment.
class FailingCpu final : public at::Allocator {
 public:
  static FailingCpu& instance() {
    static auto* const allocator = [] {
      auto* const made = new FailingCpu;
      c10::SetCPUAllocator(made, /*priority=*/202);
      return made;
    }();
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return behind_.allocate(bytes);
    const bool fails = taken_++ >= fails_from_;
    if (!fails || is_full_.exchange(true)) return behind_.allocate(bytes);
    memory_.release_cached();
    memory_.set_limit(memory_.stats().mapped);
    if (for_good_) return behind_.allocate(bytes);
    const struct Once {
      FailingCpu& of;
      ~Once() { of.fail(std::nullopt); }
    } once{*this};
    return behind_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return behind_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { behind_.copy_data(to, from, bytes); }

  void fail(std::optional<Failure> failure) {
    memory_.set_limit(limit_);
    is_full_ = false;
    for_good_ = failure && failure->for_good;
    fails_from_ = failure ? taken_ + failure->after : std::numeric_limits<std::int64_t>::max();
  }
  /// That of the session, to which memory comes back.
  void expect_limit(std::optional<Bytes> limit) { limit_ = limit; }
  [[nodiscard]] std::int64_t taken() const { return taken_; }

 private:
  at::Allocator& behind_ = *c10::GetCPUAllocator();
  memory::DeviceMemory& memory_ = memory::device_memory(c10::kCPU);
  std::optional<Bytes> limit_;
  std::atomic<std::int64_t> taken_ = 0, fails_from_ = std::numeric_limits<std::int64_t>::max();
  std::atomic<bool> is_full_ = false, for_good_ = false;
};

void fail_allocation(c10::Device device, std::optional<Failure> failure) {
  if (device.is_cpu()) return FailingCpu::instance().fail(failure);
  simulated_supply(device.index()).fail(failure);
}

std::int64_t allocations(c10::Device device) {
  return device.is_cpu() ? FailingCpu::instance().taken() : simulated_supply(device.index()).taken();
}

/// Layers with dropout, whose plan has to run some of them again.
struct Layers : torch::nn::Module {
  /// Four on each of the devices.
  explicit Layers(const std::vector<c10::Device>& devices) {
    for (const c10::Device device : devices) {
      for (int i = 0; i < 4; ++i) layers->push_back(torch::nn::Linear(64, 64));
      for (std::size_t i = layers->size() - 4; i < layers->size(); ++i) layers[i]->to(device);
    }
    register_module("layers", layers);
  }
  at::Tensor loss(at::Tensor x) {
    for (const auto& layer : *layers) {
      auto* const linear = layer->as<torch::nn::Linear>();
      x = torch::dropout(linear->forward(x.to(linear->weight.device())).tanh(), 0.2, true);
    }
    return x.square().mean();
  }
  torch::nn::ModuleList layers;
};

/// A session over devices with a budget each; the first has the batch.
class Faults : public ::testing::TestWithParam<std::vector<c10::Device>> {
 protected:
  Faults() {
    torch::manual_seed(3);
    net_ = std::make_shared<Layers>(devices_);
    x_ = torch::randn({256, 64}).to(devices_[0]);
    expected_ = step([&] {
      const at::Tensor loss = net_->loss(x_);
      loss.backward();
      return loss;
    });
    for (const c10::Device device : devices_) budgets_.push_back({device, budget_of(device)});
    session_.emplace(fitted());
    if (on_the_cpu()) FailingCpu::instance().expect_limit(memory::device_memory(c10::kCPU).stats().limit);
    (void)planned();
    std::vector<std::int64_t> taken;
    for (const c10::Device device : devices_) taken.push_back(allocations(device));
    (void)planned();
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      in_a_step_.push_back(allocations(devices_[i]) - taken[i]);
      base_.push_back(settled(memory::device_memory(devices_[i])));
    }
  }
  ~Faults() override {
    if (on_the_cpu()) FailingCpu::instance().expect_limit(std::nullopt);
    for (const c10::Device device : devices_) fail_allocation(device, std::nullopt);
  }

  [[nodiscard]] bool on_the_cpu() const {
    return std::ranges::find(devices_, c10::kCPU, &c10::Device::type) != devices_.end();
  }

  Session fitted() {
    return fit(
        [&](const at::Tensor& x) { return net_->loss(x); }, x_,
        {.budget = budgets_[0].bytes, .device = devices_[0], .other_budgets = {budgets_.begin() + 1, budgets_.end()}});
  }

  /// 80 % of what a step takes of it, of which the reserve is a third.
  Bytes budget_of(c10::Device device) {
    memory::DeviceMemory& memory = memory::device_memory(device);
    const Bytes before = settled(memory);
    memory.reset_peak();
    (void)step([&] {
      const at::Tensor loss = net_->loss(x_);
      loss.backward();
      return loss;
    });
    return before + (memory.stats().allocated_peak - before) * 8 / 10;
  }

  /// The loss and all gradients of a step from a seed, which leaves no gradient.
  std::vector<at::Tensor> step(const std::function<at::Tensor()>& run) {
    torch::manual_seed(5);
    net_->zero_grad();
    std::vector<at::Tensor> found{run().detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)};
    for (const at::Tensor& p : net_->parameters())
      found.push_back(p.grad().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
    net_->zero_grad();
    return found;
  }
  std::vector<at::Tensor> planned() {
    return step([&] { return session_->backward([&] { return net_->loss(x_); }); });
  }

  /// A step during which the device's memory fails is right, or says that it has run out; the books are balanced, and
  /// the next is right. Whether it was refused.
  bool refused_by(c10::Device device, const Failure& failure) {
    bool refused = false;
    fail_allocation(device, failure);
    try {
      expect_same(expected_, planned());
    } catch (const std::exception& error) {
      refused = true;
      EXPECT_TRUE(memory::refusal_in(std::current_exception())) << error.what();
    }
    fail_allocation(device, std::nullopt);
    net_->zero_grad();
    for (std::size_t i = 0; i < devices_.size(); ++i)
      EXPECT_EQ(settled(memory::device_memory(devices_[i])), base_[i]) << devices_[i];
    expect_same(expected_, planned());
    return refused;
  }

  /// visit(device, n) of each allocation of a step.
  void for_each_allocation(const std::function<void(c10::Device, std::int64_t)>& visit) {
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      for (std::int64_t n = 0; n < in_a_step_[i]; ++n) {
        SCOPED_TRACE(fmt::format("allocation {} of {}", n, devices_[i].str()));
        visit(devices_[i], n);
      }
    }
  }
  [[nodiscard]] std::int64_t all_in_a_step() const {
    return std::accumulate(in_a_step_.begin(), in_a_step_.end(), std::int64_t{0});
  }

  const std::vector<c10::Device> devices_ = GetParam();
  std::shared_ptr<Layers> net_;
  at::Tensor x_;
  std::vector<at::Tensor> expected_;
  std::vector<DeviceBudget> budgets_;
  std::optional<Session> session_;
  std::vector<std::int64_t> in_a_step_;  // by device
  std::vector<Bytes> base_;
};
const std::vector<std::vector<c10::Device>> kFaulty = {
    {c10::kCPU}, {kFailing}, {kFailing, {kSimulated, 0}}, {kFailing, c10::kCPU}};
INSTANTIATE_TEST_SUITE_P(Devices, Faults, ::testing::ValuesIn(kFaulty), [](const auto& it) {
  std::string name;
  for (const c10::Device device : it.param)
    name += device.is_cpu() ? "Cpu" : fmt::format("Simulated{}", static_cast<int>(device.index()));
  return name;
});

TEST_P(Faults, AnAllocationThatFailsOnceIsTriedAgain) {
  ASSERT_GT(all_in_a_step(), 50);
  int refused = 0, refused_on_the_cpu = 0;
  for_each_allocation([&](c10::Device device, std::int64_t n) {
    if (refused_by(device, {.after = n, .for_good = false})) ++(device.is_cpu() ? refused_on_the_cpu : refused);
  });
  // An accelerator gives back what it keeps, and has the memory; of the CPU's there is no more until something goes.
  EXPECT_EQ(refused, 0);
  EXPECT_LT(refused_on_the_cpu, all_in_a_step());
}

TEST_P(Faults, MemoryThatIsFullFromAnyAllocationOnRefusesTheStepAndRunsTheNext) {
  int refused = 0;
  for_each_allocation([&](c10::Device device, std::int64_t n) {
    refused += refused_by(device, {.after = n, .for_good = true}) ? 1 : 0;
  });
  EXPECT_GT(refused, all_in_a_step() / 4);
}

/// Its second session, which is recorded while memory fails, is there or not; the first goes on.
TEST_P(Faults, RecordingsThatRunOutLeaveNothingBehind) {
  if (devices_[0].is_cpu()) GTEST_SKIP() << "what fails there is a limit, which a session that is made sets itself";
  int refused = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const std::size_t i = random() % devices_.size();
    if (devices_[i].is_cpu()) continue;
    fail_allocation(
        devices_[i],
        Failure{.after = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(3 * in_a_step_[i])),
                .for_good = true});
    try {
      (void)fitted();
    } catch (const std::exception&) {
      ++refused;
    }
    fail_allocation(devices_[i], std::nullopt);
    for (std::size_t k = 0; k < devices_.size(); ++k)
      EXPECT_EQ(settled(memory::device_memory(devices_[k])), base_[k]) << devices_[k];
    expect_same(expected_, planned());
    if (HasFailure()) break;
  }
  EXPECT_GT(refused, 5);
}

/// SNUG_FAULTS: how many; 10,000 with make test-long.
TEST_P(Faults, AtRandomLeaveNothingBehind) {
  const char* const asked = std::getenv("SNUG_FAULTS");
  const std::uint64_t faults = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 100;
  for (std::uint64_t seed = 0; seed < faults; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    const std::size_t i = random() % devices_.size();
    (void)refused_by(devices_[i],
                     {.after = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(in_a_step_[i])),
                      .for_good = random() % 2 == 0});
    if (HasFailure()) break;
  }
}

/// Activations go to the host and come back.
class FailingCopies : public ::testing::Test {};

TEST_F(FailingCopies, EndTheStepAndLeaveNothingBehind) {
  torch::manual_seed(3);
  const auto net = std::make_shared<Layers>(std::vector{kFailing});
  const at::Tensor x = torch::randn({256, 64}).to(kFailing);
  memory::DeviceMemory& memory = memory::device_memory(kFailing);
  const auto forward = [&] { return net->loss(x); };
  auto recorded = replay::record_step(forward, memory);
  plan::MemoryPlan moves = plan::bare_plan(recorded.graph);
  for (plan::ValueId v = 0; v < recorded.graph.flow.values(); ++v) {
    if (!recorded.graph.flow.is_leaf(v))
      moves.actions[static_cast<std::size_t>(v)] = v % 2 == 0 ? plan::kMove : plan::kKeep;
  }
  plan::Planner planner(recorded.graph, plan::predicted(recorded.graph, std::move(moves)));
  Session session(std::move(recorded), std::move(planner), std::nullopt, memory);
  const auto step = [&] {
    torch::manual_seed(5);
    net->zero_grad();
    std::vector<at::Tensor> found{session.backward(forward)};
    for (const at::Tensor& p : net->parameters()) found.push_back(p.grad().clone());
    net->zero_grad();
    return found;
  };
  const std::vector<at::Tensor> expected = step();
  const Bytes base = settled(memory);
  int failed = 0;
  for (std::int64_t n = 0;; ++n) {
    SCOPED_TRACE(n);
    fail_copy(n);
    bool threw = false;
    try {
      (void)step();
    } catch (const std::exception& error) {
      threw = true;
      EXPECT_NE(std::string(error.what()).find("a copy failed"), std::string::npos) << error.what();
    }
    fail_copy(std::nullopt);
    if (!threw) break;  // a step has no more
    ++failed;
    net->zero_grad();
    EXPECT_EQ(settled(memory), base);
    expect_same(expected, step());
    ASSERT_LT(n, 1000);
  }
  EXPECT_GT(failed, 4);
}

}  // namespace
}  // namespace snug::testing
