// Planned steps on an accelerator whose saved tensors stay there in fewer bytes: in the time and the memory that the
// plan says, and with the same bits whenever the streams come to their work.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/memory/tensor_codec.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/record/encodings.h"
#include "snug/snug.h"
#include "tests/device/seeded_step.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/compressing_plan.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kInstalledForCodecs = (install_simulated_devices(), true);
const c10::Device kCoded(kSimulated, 0);

memory::DeviceMemory& coded_memory() { return memory::device_memory(kCoded); }

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
  std::vector<at::Tensor> step(const std::function<at::Tensor()>& run) { return seeded_step(*layers, run); }
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
      const Bytes bytes = *memory::code_bytes(record::codec_of(codec), static_cast<std::size_t>(element), info.bytes);
      info.encodings = {
          {.codec = codec, .element = element, .content_bytes = bytes, .bytes = coded_memory().rounded(bytes)}};
    }
  }
  return step;
}

TEST(CodecsOfAccelerators, TakeTheTimeAndTheMemoryThatThePlanSays) {
  const SpeedScope time({.kernel_seconds = 1e-4});
  Masked net(64, 4096, /*two_streams=*/false);
  const auto plain = net.plain();
  for (const plan::Codec lossy :
       {plan::Codec::None, plan::Codec::BFloat16, plan::Codec::Float8, plan::Codec::Int8, plan::Codec::Int4}) {
    SCOPED_TRACE(static_cast<int>(lossy));
    const replay::RecordedStep step = replay::record_step([&] { return net.loss(); }, coded_memory(), {.lossy = lossy});
    const plan::MemoryPlan plan = compressing_all(step.graph);
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
      const plan::MemoryPlan plan = compressing_all(step.graph);
      Session alone = following_codes(step, plan);
      const auto expected = net.step([&] { return alone.backward([&] { return net.loss(); }); });
      const Bytes exact = alone.last_step().compressed_bytes, images = alone.last_step().lossy_bytes;
      EXPECT_GT(exact, 4 * net.x.numel());
      EXPECT_EQ(images > 0, lossy != plan::Codec::None);
      if (lossy == plan::Codec::None) expect_same(plain, expected);
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        const OrderOfChance order(seed);
        SCOPED_TRACE(::testing::Message()
                     << "seed " << seed << ", codec " << static_cast<int>(lossy) << ", streams " << 1 + two_streams);
        expect_same(expected, net.step([&] { return alone.backward([&] { return net.loss(); }); }));
        EXPECT_EQ(alone.last_step().divergence, "");
        EXPECT_EQ(alone.last_step().compressed_bytes, exact) << "what is read too early does not fit";
        EXPECT_EQ(alone.last_step().lossy_bytes, images);
      }
    }
  }
}

/// Asks for what it has saved, and does nothing with it.
struct Asking : torch::autograd::Function<Asking> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    (void)context->get_saved_variables();
    return gradients;
  }
};

TEST(CodecsOfAccelerators, AreWaitedForByOtherStreams) {
  // The first encodes what the second makes, and the second reads in backward what has just been decoded in the first.
  torch::manual_seed(3);
  const at::Tensor w = torch::randn({16, 16}).to(kCoded).requires_grad_();
  const at::Tensor batch = torch::randn({64, 16}).to(kCoded), other_batch = torch::randn({64, 16}).to(kCoded);
  at::Tensor x = batch;
  const c10::Stream side = c10::impl::VirtualGuardImpl(kSimulated).getStreamFromGlobalPool(kCoded);
  const auto let_wait = [](c10::Stream stream, c10::Stream on) {
    c10::Event event(kSimulated);
    event.record(on);
    event.block(stream);
  };
  const auto loss = [&] {
    const c10::Stream main = current_simulated_stream(kCoded);
    const at::Tensor h = x.mm(w).add(1);
    let_wait(side, main);
    h.record_stream(side);
    at::Tensor squares;
    {
      const c10::StreamGuard in(side);
      squares = h * h;
    }
    at::Tensor asking = Asking::apply(h);
    {
      const c10::StreamGuard in(side);
      squares = squares.tanh();  // with which the second stream begins in backward
    }
    squares.record_stream(main);
    asking = asking + 1;  // in front of which that is encoded
    let_wait(main, side);
    return (squares + asking).sum();
  };
  replay::RecordedStep step = replay::record_step(loss, coded_memory());
  plan::MemoryPlan plan = plan::make_plan(step.graph, "none", std::nullopt);
  for (plan::ValueId v = 0; v < step.graph.flow.values(); ++v) {
    plan::ValueInfo& info = step.graph.values[plan::at(v)];
    if (step.graph.flow.is_leaf(v) || !info.saved) continue;
    const Bytes bytes = *memory::code_bytes(memory::Codec::BFloat16, 4, info.bytes);
    info.encodings = {{.codec = plan::Codec::BFloat16, .element = 4, .content_bytes = bytes, .bytes = bytes}};
    plan.actions[plan::at(v)] = plan::compressed(plan::Codec::BFloat16);
  }
  Session session = following_codes(step, plan);
  const auto gradient = [&] {
    w.mutable_grad() = at::Tensor();
    session.backward(loss);
    EXPECT_EQ(session.last_step().lossy_bytes, 2 * 64 * 16 * 4);
    return w.grad().cpu();
  };
  const at::Tensor expected = gradient();
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    x = other_batch;  // memory that is read too early has the numbers of this one
    (void)gradient();
    x = batch;
    const OrderOfChance order(seed);
    SCOPED_TRACE(seed);
    expect_same({expected}, {gradient()});
  }
}

TEST(CodecsOfAccelerators, ThatFindNoRoomKeepWhatTheyWouldHaveCoded) {
  Masked net(64, 4096, /*two_streams=*/false);
  const auto plain = net.plain();
  const replay::RecordedStep step = replay::record_step([&] { return net.loss(); }, coded_memory());
  const plan::MemoryPlan plan = compressing_all(step.graph);
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
  const plan::MemoryPlan plan = compressing_all(step.graph);
  Session session = following_codes(step, plan);
  const auto run = [&] { return net.step([&] { return session.backward([&] { return net.loss(); }); }); };
  const auto expected = run();
  session.use_arena();
  for (int i = 0; i < 4; ++i) expect_same(expected, run());
  ASSERT_TRUE(session.arena());
  EXPECT_GT(session.arena()->bytes, 0);
}

TEST(CodecsOfAccelerators, AreNotMeasuredAgainInStepsThatAreKnown) {
  const SpeedScope time({.kernel_seconds = 1e-3});
  torch::manual_seed(2);
  const at::Tensor all = torch::randn({256, 256}).to(kCoded), w = torch::ones({1, 256}).to(kCoded).requires_grad_();
  const auto loss = [&](std::int64_t rows) {
    const at::Tensor x = all.narrow(0, 0, rows), indices = (x * 100).to(at::kLong).abs().remainder(100);
    return (x * w).gather(1, indices).square().sum();
  };
  const replay::RecordedStep step = replay::record_step([&] { return loss(256); }, coded_memory());
  const plan::MemoryPlan plan = compressing_all(step.graph);
  EXPECT_EQ(std::ranges::count(plan.actions, plan::compressed(plan::Codec::Narrow)), 1);
  for (const plan::MemoryPlan& way : {plan, plan::make_plan(step.graph, "none", std::nullopt)}) {
    Session session = following_codes(step, way);
    const auto seconds_of = [&](std::int64_t rows) {
      Streams::instance().wait_for_all();
      const double began = Streams::instance().host_clock();
      w.mutable_grad() = at::Tensor();
      session.backward([&] { return loss(rows); });
      Streams::instance().wait_for_all();
      return Streams::instance().host_clock() - began;
    };
    const double before = seconds_of(256);
    for (int i = 0; i < 3; ++i) seconds_of(200);  // from here on any step may be another one
    EXPECT_NEAR(seconds_of(256), before, 1e-6) << "a kernel takes a thousand times as long";
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  }
}

TEST(CodecsOfAccelerators, AreChosenByFitForABudget) {
  // Copies of values that backward reads are worth a codec where all that is made again takes longer.
  const SpeedScope time({.kernel_seconds = 1e-3});
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
