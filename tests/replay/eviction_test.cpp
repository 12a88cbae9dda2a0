// What an evictor takes when memory runs out, and what becomes of a step where nothing that it takes helps.
#include "snug/replay/eviction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "snug/memory/process_memory.h"
#include "snug/plan/does_not_fit.h"
#include "snug/record/recording.h"
#include "snug/replay/saved_tensor_hooks.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::same_bits;
using testing::test_device;
using testing::test_memory;

/// The CPU's figures under the name of another device.
class OtherDevice final : public memory::DeviceMemory {
 public:
  [[nodiscard]] c10::Device device() const override { return {c10::kCUDA, 0}; }
  [[nodiscard]] memory::Stats stats() const override { return test_memory().stats(); }
  void reset_peak() override {}
  void set_limit(std::optional<Bytes> /*limit*/) override {}
  void release_cached() override {}
  [[nodiscard]] Bytes rounded(Bytes bytes) const override { return test_memory().rounded(bytes); }
  [[nodiscard]] bool allocated_since(const c10::Storage& /*storage*/, memory::AllocationTime /*time*/) const override {
    return false;
  }
  [[nodiscard]] memory::MachineMemory capacity() const override { return {}; }
  void retag(const c10::Storage& /*storage*/, memory::Tag /*tag*/) override {}
  void add_pressure_handler(memory::PressureHandler* /*handler*/) override {}
  void remove_pressure_handler(memory::PressureHandler* /*handler*/) override {}
  [[nodiscard]] std::unique_ptr<memory::Meter> meter() override { return test_memory().meter(); }
};

TEST(Eviction, DropsValuesOfItsOwnDeviceOnly) {
  replay::require_saved_tensor_hooks();
  const at::Tensor x = torch::rand({256, 256}).requires_grad_();
  const auto step = [&] { return x.sin().exp().sum(); };
  const at::Tensor expected = torch::autograd::grad({step()}, {x})[0];
  const auto tape = std::make_shared<record::Tape>(record::KeepSaved{});
  OtherDevice other;
  replay::Evictor of_other(tape, other, replay::EvictionCost::Timeless);
  replay::Evictor of_this(tape, test_memory(), replay::EvictionCost::Timeless);
  at::Tensor loss;
  {
    const record::Recording recording(tape);
    loss = step();
  }
  tape->finish();
  const Bytes held = test_memory().stats().allocated;
  EXPECT_FALSE(of_other.make_room(1_GiB, memory::Patience::None));
  EXPECT_EQ(test_memory().stats().allocated, held);
  EXPECT_TRUE(of_this.make_room(1_GiB, memory::Patience::None));
  EXPECT_LT(test_memory().stats().allocated, held);
  EXPECT_TRUE(same_bits(expected, torch::autograd::grad({loss}, {x})[0]));
}

TEST(Eviction, LeavesWhatTheProgramHoldsAsNothingWouldBeFreed) {
  replay::require_saved_tensor_hooks();
  const at::Tensor x = torch::rand({256, 256}).requires_grad_();
  const auto tape = std::make_shared<record::Tape>(record::KeepSaved{});
  replay::Evictor evictor(tape, test_memory(), replay::EvictionCost::Timeless);
  at::Tensor held, loss;
  {
    const record::Recording recording(tape);
    held = x.exp();
    loss = held.sum();
  }
  EXPECT_FALSE(evictor.make_room(1_MiB, memory::Patience::None));
  const at::Tensor expected = held.detach().clone();
  held = at::Tensor();
  EXPECT_TRUE(evictor.make_room(1_MiB, memory::Patience::None));
  EXPECT_TRUE(same_bits(expected, torch::autograd::grad({loss}, {x})[0]));
}

TEST(Eviction, AndWhatItMakesRunAgainAreNoPartOfTheStepThatIsRecorded) {
  testing::Net net;
  const at::Tensor x = torch::randn({256, 256});
  const auto step = [&] { return net(x); };
  const plan::StepGraph free = replay::record_step(step, test_memory()).graph;
  const plan::MemoryPlan none = plan::make_plan(free, "none", std::nullopt);
  test_memory().release_cached();
  const Bytes limit = test_memory().stats().mapped + (none.predicted_peak - free.static_bytes) * 7 / 10;
  ASSERT_LT(limit, none.predicted_peak) << "so that values are evicted";
  const plan::StepGraph limited = replay::record_step_within(limit, step, test_memory()).graph;
  EXPECT_EQ(limited.fingerprint(), free.fingerprint());
  EXPECT_EQ(plan::make_plan(limited, "none", std::nullopt).predicted_peak, none.predicted_peak);
  EXPECT_GT(limited.step_seconds, 0.0);
}

/// What a node has unpacked is there until it is released, though under a limit the node alone has it, and lets go of
/// it before the gradient of a bias is summed up.
TEST(Eviction, LeavesThePeakOfEveryMomentAsItIsWithoutALimit) {
  torch::manual_seed(5);
  std::vector<torch::nn::Linear> layers;
  for (int i = 0; i < 4; ++i) layers.emplace_back(256, 256);
  const at::Tensor x = torch::randn({8, 64, 256});
  const auto step = [&] {
    at::Tensor y = x;
    for (torch::nn::Linear& layer : layers) y = torch::gelu(layer(y));
    return y.square().mean();
  };
  const auto moments_of = [](const plan::StepGraph& graph) {
    std::vector<std::tuple<plan::Event::Kind, std::int32_t, Bytes, Bytes>> all;
    for (const plan::Event& e : graph.events) all.emplace_back(e.kind, e.id, e.peak, e.net);
    return all;
  };
  const plan::StepGraph free = replay::record_step(step, test_memory()).graph;
  const Bytes added = plan::make_plan(free, "none", std::nullopt).predicted_peak - free.static_bytes;
  for (const int percent : {50, 60, 70, 80, 90}) {
    test_memory().release_cached();
    const Bytes limit = test_memory().stats().mapped + added * percent / 100;
    EXPECT_EQ(moments_of(replay::record_step_within(limit, step, test_memory()).graph), moments_of(free)) << percent;
  }
}

TEST(Eviction, ThatUndoesItselfIsARefusal) {
  // A sum is to be made again, of an operand that is kept and one that is not: in backward there is room for one of
  // them, and each goes in turn when the other is made.
  constexpr std::int64_t kElements = 1 << 18;
  const Bytes unit = test_memory().rounded(kElements * 4);
  const at::Tensor x = torch::rand({kElements}).requires_grad_();
  int runs = 0;
  at::Tensor taken;
  const auto step = [&] {
    ++runs;
    taken = at::Tensor();
    const Region region([](const OperatorContext& op) {
      return op.name == "aten::exp" && op.invocation == 1 ? Choice::MustRecompute : Choice::PreferKeep;
    });
    const at::Tensor sum = x.exp() + x.cos();  // its operands are gone when there is more
    const at::Tensor result = sum.exp();
    result.register_hook([&](const at::Tensor&) { taken = at::empty({2 * kElements}); });
    return result.sum();
  };
  test_memory().release_cached();
  const Bytes limit = test_memory().stats().allocated + 3 * unit + unit / 2;
  try {
    (void)replay::record_step_within(limit, step, test_memory());
    ADD_FAILURE() << "it does not fit";
  } catch (const DoesNotFit& refused) {
    EXPECT_GT(refused.floor().floor, limit);
    EXPECT_EQ(refused.floor().peak_op, "aten::add.Tensor");
  }
  EXPECT_EQ(runs, 2) << "by either order of evictions";
}

TEST(Recording, WithoutABudgetTakesNoMoreThanTheMachineHas) {
  const Bytes available = memory::machine_memory().available;
  if (!test_device().is_cpu() || available == 0) GTEST_SKIP() << "the system does not tell";
  const at::Tensor x = torch::rand({8}).requires_grad_();
  const auto step = [&] {
    std::vector<at::Tensor> unfilled;  // costs nothing, and counts
    for (int i = 0; i < 12; ++i) unfilled.push_back(at::empty({available / 8}, at::kByte));
    return x.exp().sum();
  };
  try {
    (void)replay::record_step_within(std::nullopt, step, test_memory());
    ADD_FAILURE() << "it takes half as much again as there is";
  } catch (const DoesNotFit& refused) {
    EXPECT_EQ(refused.floor().recorded, DoesNotFit::Floor::Recorded::ToMachine);
    EXPECT_THAT(refused.what(), ::testing::HasSubstr("this machine has"));
    EXPECT_THAT(refused.what(), ::testing::HasSubstr("use a smaller batch or sequence"));
  }
  EXPECT_EQ(test_memory().stats().limit, std::nullopt);
}

}  // namespace
}  // namespace snug
