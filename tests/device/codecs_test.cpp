// Planned steps on an accelerator whose saved tensors stay there in fewer bytes: in the time and the memory that the
// plan says, and with the same bits whenever the streams come to their work.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/memory/tensor_codec.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/record/encodings.h"
#include "snug/snug.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kInstalledForCodecs = (install_simulated_devices(), true);
const c10::Device kCoded(kSimulated, 0);

memory::DeviceMemory& coded_memory() { return memory::device_memory(kCoded); }

class KernelsTake {
 public:
  explicit KernelsTake(double seconds) : before_(simulated_speed()) {
    set_simulated_speed({.kernel_seconds = seconds});
  }
  ~KernelsTake() { set_simulated_speed(before_); }
  KernelsTake(const KernelsTake&) = delete;
  KernelsTake& operator=(const KernelsTake&) = delete;

 private:
  SimulatedSpeed before_;
};

/// Layers and their masks, the second half of which two streams may share.
struct Masked {
  Masked(std::int64_t width, std::int64_t rows, bool two_streams) : two(two_streams) {
    torch::manual_seed(11);
    for (int i = 0; i < 6; ++i) layers->push_back(torch::nn::Linear(width, width));
    layers->to(kCoded);
    x = torch::randn({rows, width}).to(kCoded);
  }
  at::Tensor apply(std::size_t i, const at::Tensor& h) {
    const at::Tensor made = layers[i]->as<torch::nn::Linear>()->forward(h);
    return std::get<0>(at::native_dropout(torch::gelu(made), 0.25, true));
  }
  at::Tensor loss() {
    const at::Tensor stem = apply(1, apply(0, x));
    if (!two) return (apply(3, apply(2, stem)) + apply(5, apply(4, stem))).square().mean();
    const c10::Stream main = current_simulated_stream(kCoded);
    static const c10::Stream side = c10::impl::VirtualGuardImpl(kSimulated).getStreamFromGlobalPool(kCoded);
    const auto let_wait = [](c10::Stream stream, c10::Stream on) {
      c10::Event event(kSimulated);
      event.record(on);
      event.block(stream);
    };
    let_wait(side, main);
    stem.record_stream(side);
    at::Tensor second;
    {
      const c10::StreamGuard in(side);
      second = apply(3, apply(2, stem));
    }
    second.record_stream(main);
    const at::Tensor first = apply(5, apply(4, stem));
    let_wait(main, side);
    return (first + second).square().mean();
  }
  /// The loss and all gradients, as the host has them; leaves none.
  std::vector<at::Tensor> step(const std::function<at::Tensor()>& run) {
    torch::manual_seed(5);
    layers->zero_grad();
    std::vector<at::Tensor> found{run().detach().cpu()};
    for (const at::Tensor& p : layers->parameters()) found.push_back(p.grad().cpu());
    layers->zero_grad();
    return found;
  }
  std::vector<at::Tensor> plain() {
    return step([&] {
      const at::Tensor value = loss();
      value.backward();
      return value;
    });
  }

  torch::nn::ModuleList layers;
  at::Tensor x;
  bool two;
};

/// All that can be is compressed, with a loss only where it may be.
plan::MemoryPlan coding_all(const plan::StepGraph& graph) {
  plan::MemoryPlan plan = plan::make_plan(graph, "none", std::nullopt);
  for (plan::ValueId v = 0; v < graph.flow.values(); ++v) {
    for (const plan::Action action : plan::legal_actions(graph, v)) {
      if (plan::is_compressed(action)) plan.actions[plan::at(v)] = action;
    }
  }
  return plan::predicted(graph, std::move(plan));
}

Session following_codes(const replay::RecordedStep& step, const plan::MemoryPlan& plan) {
  return {step, plan::Planner(step.graph, plan), std::nullopt, coded_memory()};
}

/// A step whose values are too small to be worth it, and may be coded all the same.
replay::RecordedStep recorded_small(Masked& net, plan::Codec lossy) {
  replay::RecordedStep step = replay::record_step([&] { return net.loss(); }, coded_memory(), {.lossy = lossy});
  for (plan::OpId op = 0; op < step.graph.flow.ops(); ++op) {
    const bool mask = step.graph.ops[plan::at(op)].name == "aten::native_dropout";
    for (const plan::Output& out : step.graph.flow.outputs(op)) {
      plan::ValueInfo& info = step.graph.values[plan::at(out.value)];
      const bool is_mask = mask && info.bytes == net.x.numel();
      const plan::Codec codec = is_mask ? plan::Codec::Bits : lossy;
      if (!info.saved || codec == plan::Codec::None || info.bytes < net.x.numel()) continue;
      const std::int32_t element = is_mask ? 1 : 4;
      const Bytes bytes =
          *memory::tensor_code_bytes(record::codec_of(codec), static_cast<std::size_t>(element), info.bytes);
      info.encodings = {
          {.codec = codec, .element = element, .content_bytes = bytes, .bytes = coded_memory().rounded(bytes)}};
    }
  }
  return step;
}

TEST(CodecsOfAccelerators, TakeTheTimeAndTheMemoryThatThePlanSays) {
  const KernelsTake time(1e-4);
  Masked net(64, 4096, /*two_streams=*/false);
  const auto plain = net.plain();
  for (const plan::Codec lossy :
       {plan::Codec::None, plan::Codec::BFloat16, plan::Codec::Float8, plan::Codec::Int8, plan::Codec::Int4}) {
    SCOPED_TRACE(static_cast<int>(lossy));
    const replay::RecordedStep step = replay::record_step([&] { return net.loss(); }, coded_memory(), {.lossy = lossy});
    const plan::MemoryPlan plan = coding_all(step.graph);
    const plan::Simulation run = plan::simulate(step.graph, plan);
    const plan::MemoryPlan kept = plan::make_plan(step.graph, "none", std::nullopt);
    EXPECT_LT(plan.predicted_peak, kept.predicted_peak - (lossy != plan::Codec::None ? 1_MiB : 0));
    EXPECT_GT(run.seconds, 1.1 * kept.predicted_seconds);
    Session session = following_codes(step, plan);
    std::vector<at::Tensor> first;
    for (int i = 0; i < 3; ++i) {
      coded_memory().reset_peak();
      Streams::instance().wait_for_all();
      const double began = Streams::instance().host_clock();
      const auto found = net.step([&] {
        const at::Tensor loss = session.backward([&] { return net.loss(); });
        Streams::instance().wait_for_all();
        EXPECT_NEAR(Streams::instance().host_clock() - began, run.seconds, 0.03 * run.seconds);
        EXPECT_EQ(coded_memory().stats().allocated_peak, plan.predicted_peak);
        return loss;
      });
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      EXPECT_EQ(session.last_step().replayed_ops, 0);
      EXPECT_EQ(session.last_step().evictions, 0);
      EXPECT_EQ(session.last_step().lossy_bytes > 0, lossy != plan::Codec::None);
      if (first.empty()) first = found;
      expect_same(first, found);
      expect_same({plain.front()}, {found.front()});
      if (lossy == plan::Codec::None) expect_same(plain, found);
    }
  }
}

TEST(CodecsOfAccelerators, GiveTheSameBitsWheneverTheirStreamsComeToThem) {
  for (const bool two_streams : {false, true}) {
    Masked net(16, 64, two_streams);
    const auto plain = net.plain();
    for (const plan::Codec lossy : {plan::Codec::None, plan::Codec::Float8, plan::Codec::Int4}) {
      const replay::RecordedStep step = recorded_small(net, lossy);
      const plan::MemoryPlan plan = coding_all(step.graph);
      Session alone = following_codes(step, plan);
      const auto expected = net.step([&] { return alone.backward([&] { return net.loss(); }); });
      EXPECT_GT(alone.last_step().compressed_bytes, 4 * net.x.numel());
      EXPECT_EQ(alone.last_step().lossy_bytes > 0, lossy != plan::Codec::None);
      if (lossy == plan::Codec::None) expect_same(plain, expected);
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        const OrderOfChance order(seed);
        SCOPED_TRACE(::testing::Message()
                     << "seed " << seed << ", codec " << static_cast<int>(lossy) << ", streams " << 1 + two_streams);
        expect_same(expected, net.step([&] { return alone.backward([&] { return net.loss(); }); }));
        EXPECT_EQ(alone.last_step().divergence, "");
      }
    }
  }
}

TEST(CodecsOfAccelerators, ThatFindNoRoomKeepWhatTheyWouldHaveCoded) {
  Masked net(64, 4096, /*two_streams=*/false);
  const auto plain = net.plain();
  const replay::RecordedStep step = replay::record_step([&] { return net.loss(); }, coded_memory());
  const plan::MemoryPlan plan = coding_all(step.graph);
  Session session = following_codes(step, plan);
  for (const Bytes less : {100_KiB, 400_KiB, 1000_KiB, 2000_KiB}) {
    const memory::HeldLimit held(coded_memory(), plan.predicted_peak - less);
    coded_memory().release_cached();
    expect_same(plain, net.step([&] { return session.backward([&] { return net.loss(); }); }));
    EXPECT_TRUE(session.last_step().followed_plan);
    EXPECT_GT(session.last_step().evictions, 0);
  }
}

TEST(CodecsOfAccelerators, LieInAnArena) {
  Masked net(64, 4096, /*two_streams=*/false);
  const replay::RecordedStep step =
      replay::record_step([&] { return net.loss(); }, coded_memory(), {.lossy = plan::Codec::Int8});
  const plan::MemoryPlan plan = coding_all(step.graph);
  Session session = following_codes(step, plan);
  const auto run = [&] { return net.step([&] { return session.backward([&] { return net.loss(); }); }); };
  const auto expected = run();
  session.use_arena();
  for (int i = 0; i < 4; ++i) expect_same(expected, run());
  ASSERT_TRUE(session.arena());
  EXPECT_GT(session.arena()->bytes, 0);
}

TEST(CodecsOfAccelerators, AreChosenByFitForABudget) {
  // Copies of values that backward reads are worth a codec where all that is made again takes longer.
  const KernelsTake time(1e-3);
  Masked net(64, 4096, /*two_streams=*/false);
  const auto plain = net.plain();
  const replay::RecordedStep step = replay::record_step([&] { return net.loss(); }, coded_memory());
  const Bytes kept = plan::make_plan(step.graph, "none", std::nullopt).predicted_peak;
  const Bytes budget = step.graph.static_bytes + (kept - step.graph.static_bytes) * 7 / 10;
  const auto planned = [&](plan::Codec lossy) {
    const auto forward = [&](const at::Tensor&) { return net.loss(); };
    Session session = fit(forward, net.x, {.budget = budget, .device = kCoded, .lossy = lossy});
    const auto found = net.step([&] { return session.backward(forward, net.x); });
    EXPECT_LE(coded_memory().stats().mapped_peak, budget);
    if (lossy == plan::Codec::None) expect_same(plain, found);
    EXPECT_EQ(session.last_step().lossy_bytes > 0, lossy != plan::Codec::None);
    return session.plan().predicted_seconds;
  };
  coded_memory().release_cached();
  coded_memory().reset_peak();
  const double exact = planned(plan::Codec::None), lossy = planned(plan::Codec::BFloat16);
  EXPECT_LT(lossy, exact);
}

}  // namespace
}  // namespace snug::testing
