// Planned steps on an accelerator whose copies to the host and back go on while it computes: in the time and the memory
// that the plan says, and with the bits of the plain step, whenever the streams come to their work.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/replay/moves.h"
#include "snug/snug.h"
#include "tests/base/front_end_scope.h"
#include "tests/device/seeded_step.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"
#include "tests/memory/translating_front_end.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kInstalledForCopies = (install_simulated_devices(), true);
const c10::Device kLinked(kSimulated, 0);

memory::DeviceMemory& linked_memory() { return memory::device_memory(kLinked); }

double simulated_seconds_of(const std::function<void()>& run) {
  Streams::instance().wait_for_all();
  const double began = Streams::instance().host_clock();
  run();
  Streams::instance().wait_for_all();
  return Streams::instance().host_clock() - began;
}

/// Layers of one width, with a dropout each.
struct Dropouts {
  Dropouts(int count, std::int64_t width, std::int64_t rows) {
    torch::manual_seed(11);
    for (int i = 0; i < count; ++i) layers->push_back(torch::nn::Linear(width, width));
    layers->to(kLinked);
    x = torch::randn({rows, width}).to(kLinked);
  }
  at::Tensor loss() {
    at::Tensor h = x;
    for (const auto& layer : *layers) h = torch::dropout(layer->as<torch::nn::Linear>()->forward(h).tanh(), 0.1, true);
    return h.square().mean();
  }
  at::Tensor plain() {
    const at::Tensor value = loss();
    value.backward();
    return value;
  }
  /// The loss and all gradients, as the host has them.
  std::vector<at::Tensor> step(const std::function<at::Tensor()>& run) { return seeded_step(*layers, run); }

  /// By the simulated clock; leaves no gradient.
  double seconds_of_a_step(Session& session) {
    torch::manual_seed(5);
    const double seconds = simulated_seconds_of([&] { session.backward([&] { return loss(); }); });
    layers->zero_grad();
    return seconds;
  }

  torch::nn::ModuleList layers;
  at::Tensor x;
};

/// A recorded step whose plans may move for what the device's link takes.
replay::RecordedStep recorded_with_link(Dropouts& net) {
  replay::RecordedStep step = replay::record_step([&] { return net.loss(); }, linked_memory());
  const SimulatedSpeed speed = simulated_speed();
  step.graph.moves.host = plan::MoveCost{.out_seconds_per_byte = 1 / speed.bytes_per_second,
                                         .in_seconds_per_byte = 1 / speed.bytes_per_second,
                                         .seconds_per_copy = speed.copy_latency,
                                         .overlaps = true,
                                         .budget = std::nullopt};
  return step;
}

Session following(const replay::RecordedStep& step, const plan::MemoryPlan& plan) {
  Session session(step, plan::Planner(step.graph, plan::predicted(step.graph, plan)), std::nullopt, linked_memory());
  session.use(std::make_shared<memory::Tiers>(memory::TierBudgets{.host = 1_GiB}));
  return session;
}

/// A session whose plan moves all that it can, with so much memory for copies.
Session moving_all(const replay::RecordedStep& step, Bytes leaving, Bytes arriving, plan::Action to = plan::kMove) {
  plan::MemoryPlan plan = plan::make_plan(step.graph, "none", std::nullopt);
  for (plan::ValueId v = 0; v < step.graph.flow.values(); ++v) {
    if (plan::may_move(step.graph, v)) plan.actions[plan::at(v)] = to;
  }
  return following(step, plan::staged(step.graph, plan, leaving, arriving));
}

TEST(HiddenCopies, TakeTheTimeAndTheMemoryThatThePlanSays) {
  // A kernel takes 1 ms and makes 256 KiB, which take 0.66 ms on the link.
  const SpeedScope speed({.bytes_per_second = 4e8, .copy_latency = 1e-5, .kernel_seconds = 1e-3});
  Dropouts net(12, 64, 1024);
  const auto expected = net.step([&] { return net.plain(); });
  const double plain = simulated_seconds_of([&] { net.plain(); });
  net.layers->zero_grad();
  const replay::RecordedStep step = recorded_with_link(net);
  double waiting = 0;
  for (const Bytes staging : {0_KiB, 256_KiB, 1024_KiB}) {
    SCOPED_TRACE(staging);
    Session session = moving_all(step, staging, staging);
    const plan::Simulation run = plan::simulate(step.graph, session.plan());
    for (int i = 0; i < 3; ++i) {
      linked_memory().reset_peak();
      const double seconds = net.seconds_of_a_step(session);
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      EXPECT_EQ(session.last_step().evictions, 0);
      EXPECT_EQ(session.last_step().replayed_ops, 0);
      EXPECT_EQ(linked_memory().stats().allocated_peak, session.plan().predicted_peak);
      EXPECT_NEAR(seconds, run.seconds, 0.02 * run.seconds);
      EXPECT_EQ(session.tiers().stats(memory::Tier::Host).taken, 0) << "nothing is in flight at the step's end";
      waiting = seconds / plain - 1;
    }
    expect_same(expected, net.step([&] { return session.backward([&] { return net.loss(); }); }));
    if (staging == 0) {
      EXPECT_GT(waiting, 0.3) << "what nobody hides takes its time";
    }
  }
  EXPECT_LT(waiting, 0.06) << "of so many copies";
}

/// A penalty on the gradient. `keeps_last`: the program has the last layer's result while the pass inside runs.
void expect_predicted_memory_of_a_pass_inside(bool keeps_last) {
  const SpeedScope speed({.bytes_per_second = 4e8, .copy_latency = 1e-5, .kernel_seconds = 1e-3});
  Dropouts net(8, 64, 1024);
  const auto penalized = [&] {
    const at::Tensor x = net.x.detach().requires_grad_();
    at::Tensor last = x;
    for (const auto& layer : *net.layers) last = layer->as<torch::nn::Linear>()->forward(last).tanh();
    const at::Tensor value = last.square().mean();
    if (!keeps_last) last.reset();
    const at::Tensor gradient = torch::autograd::grad({value}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    return value + gradient.square().sum();
  };
  const auto expected = net.step([&] {
    const at::Tensor value = penalized();
    value.backward();
    return value;
  });
  replay::RecordedStep step = replay::record_step(penalized, linked_memory());
  step.graph.moves.host = plan::MoveCost{.out_seconds_per_byte = 1 / 4e8,
                                         .in_seconds_per_byte = 1 / 4e8,
                                         .seconds_per_copy = 1e-5,
                                         .overlaps = true,
                                         .budget = std::nullopt};
  for (const Bytes staging : {0_KiB, 256_KiB, 1024_KiB}) {
    SCOPED_TRACE(staging);
    Session session = moving_all(step, staging, staging);
    linked_memory().reset_peak();
    expect_same(expected, net.step([&] { return session.backward(penalized); }));
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_GT(session.last_step().moved_bytes, 0);
    const Bytes predicted = session.plan().predicted_peak, actual = linked_memory().stats().allocated_peak;
    if (!keeps_last) {
      EXPECT_EQ(actual, predicted);
      continue;
    }
    // What the program has is counted as fetched for the pass inside.
    EXPECT_LE(actual, predicted);
    EXPECT_GE(actual + static_cast<Bytes>(net.x.nbytes()), 0.95 * static_cast<double>(predicted));
  }
}

TEST(HiddenCopies, TakeThePredictedMemoryWhereTheStepGoesBackwardInItsForwardPass) {
  expect_predicted_memory_of_a_pass_inside(/*keeps_last=*/true);
}

// What was fetched for the pass inside stays with the nodes that it made, which go after the first of those that saved
// it in the forward pass.
TEST(HiddenCopies, TakeThePredictedMemoryWhereNodesOfAPassInsideKeepThem) {
  expect_predicted_memory_of_a_pass_inside(/*keeps_last=*/false);
}

TEST(HiddenCopies, AreBesideReplaysInAPlanForABudget) {
  const SpeedScope speed({.bytes_per_second = 1e8, .copy_latency = 1e-5, .kernel_seconds = 1e-3});
  Dropouts net(12, 64, 1024);
  const auto expected = net.step([&] { return net.plain(); });
  const replay::RecordedStep step = recorded_with_link(net);
  plan::StepGraph without = step.graph;
  without.moves.host.reset();
  const Bytes floor = plan::TradeOff(without).floor(),
              most = plan::make_plan(without, "none", std::nullopt).predicted_peak;
  const plan::Budget budget = plan::Budget::for_limit(plan::Budget::for_limit(1).floor_for(floor + (most - floor) / 4));
  Session session(step, "optimal", budget, linked_memory());
  session.use(std::make_shared<memory::Tiers>(memory::TierBudgets{.host = 1_GiB}));
  const plan::Explanation why = plan::explain(step.graph, session.plan());
  EXPECT_GT(why.all.moved, 0);
  EXPECT_GT(why.all.replayed_ops, 0) << "the link is too slow for all of it";
  EXPECT_GT(session.plan().staging.leaving, 0);
  EXPECT_LT(session.plan().predicted_seconds, plan::make_plan(without, "optimal", budget).predicted_seconds);
  for (int i = 0; i < 3; ++i) {
    linked_memory().reset_peak();
    const double seconds = net.seconds_of_a_step(session);
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_EQ(session.last_step().replayed_ops, why.all.replayed_ops);
    EXPECT_LE(linked_memory().stats().mapped_peak, budget.limit);
    EXPECT_NEAR(static_cast<double>(linked_memory().stats().allocated_peak),
                static_cast<double>(session.plan().predicted_peak),
                0.005 * static_cast<double>(session.plan().predicted_peak));
    if (i == 0) continue;  // the first step compares what it recomputes, which takes time
    EXPECT_NEAR(seconds, session.plan().predicted_seconds, 0.05 * seconds);
  }
  expect_same(expected, net.step([&] { return session.backward([&] { return net.loss(); }); }));
  linked_memory().set_limit(std::nullopt);
}

/// Page-locked memory comes in powers of two, and a budget counts them.
TEST(HiddenCopies, GoToTheHostOnlyAsFarAsItsPiecesFitTheBudget) {
  const SpeedScope speed({.bytes_per_second = 1e12, .copy_latency = 1e-6, .kernel_seconds = 1e-3});
  Dropouts net(6, 64, 35'000);  // of 8.5 MiB each, of which a piece of 32 has three
  const auto expected = net.step([&] { return net.plain(); });
  replay::RecordedStep step = recorded_with_link(net);
  for (const Bytes host : {20_MiB, 48_MiB, 64_MiB}) {
    SCOPED_TRACE(host);
    step.graph.moves.host->budget = host;
    step.graph.moves.host->in_slabs = true;
    Session session(step, "optimal", plan::Budget::for_limit(170_MiB), linked_memory());
    session.use(std::make_shared<memory::Tiers>(memory::TierBudgets{.host = host}));
    const plan::Simulation run = plan::simulate(session.graph(), session.plan());
    EXPECT_GT(run.host_peak, 0);
    EXPECT_LE(run.host_peak, host);
    linked_memory().reset_peak();
    expect_same(expected, net.step([&] { return session.backward([&] { return net.loss(); }); }));
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_LE(linked_memory().stats().allocated_peak, session.plan().predicted_peak);
    EXPECT_EQ(session.tiers().stats(memory::Tier::Host).held, run.host_peak);
  }
}

TEST(HiddenCopies, GiveThePlainBitsWheneverTheirStreamsComeToThem) {
  Dropouts net(6, 16, 64);
  const auto expected = net.step([&] { return net.plain(); });
  const replay::RecordedStep step = recorded_with_link(net);
  for (const Bytes staging : {4_KiB, 16_KiB}) {
    Session session = moving_all(step, staging, staging);
    const auto planned = [&] { return session.backward([&] { return net.loss(); }); };
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      const OrderOfChance order(seed);
      SCOPED_TRACE(seed);
      expect_same(expected, net.step(planned));
      EXPECT_EQ(session.last_step().divergence, "");
    }
  }
}

TEST(HiddenCopies, GiveThePlainBitsByWayOfTheHostToADisk) {
  Dropouts net(6, 16, 64);
  const auto expected = net.step([&] { return net.plain(); });
  replay::RecordedStep step = replay::record_step([&] { return net.loss(); }, linked_memory());
  step.graph.moves.disk = plan::MoveCost{.overlaps = true, .budget = std::nullopt};
  for (const Bytes staging : {0_KiB, 4_KiB, 16_KiB}) {
    Session session = moving_all(step, staging, staging, plan::kMoveToDisk);
    const auto planned = [&] { return session.backward([&] { return net.loss(); }); };
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const OrderOfChance order(seed);
      SCOPED_TRACE(seed);
      expect_same(expected, net.step(planned));
      EXPECT_EQ(session.last_step().divergence, "");
      EXPECT_EQ(session.tiers().stats(memory::Tier::Disk).taken, 0);
      EXPECT_GT(session.tiers().stats(memory::Tier::Disk).taken_peak, 0);
    }
  }
}

TEST(HiddenCopies, AMissingWaitShowsAsOtherBits) {
  Dropouts net(6, 16, 64);
  const auto expected = net.step([&] { return net.plain(); });
  const replay::RecordedStep step = recorded_with_link(net);
  Session session = moving_all(step, 8_KiB, 8_KiB);
  session.verify_replays(VerifyReplay::Off);  // it would find the other bits first
  const auto planned = [&] { return session.backward([&] { return net.loss(); }); };
  const std::int64_t before = Streams::instance().waits();
  (void)net.step(planned);
  const std::int64_t waits = Streams::instance().waits() - before;
  int seen = 0;
  for (std::int64_t n = 0; n < waits; ++n) {
    bool differs = false;
    for (std::uint64_t seed = 0; seed < 25 && !differs; ++seed) {
      const OrderOfChance order(seed);
      Streams::instance().leave_out_wait(n);
      const auto found = net.step(planned);
      Streams::instance().leave_out_wait(std::nullopt);
      for (std::size_t i = 0; i < found.size(); ++i) differs = differs || !same_bits(found[i], expected[i]);
    }
    seen += differs ? 1 : 0;
  }
  EXPECT_GT(seen, 20) << "of " << waits << ", most of which wait for what others have waited for";
}

TEST(HiddenCopies, GoWhereMemoryRunsOut) {
  // Planned for what it takes, run in less: what leaves is waited for, what has come goes again, and what there is no
  // room for comes later. Also where a refusal is another exception on its way through LibTorch.
  Dropouts net(12, 64, 1024);
  const auto expected = net.step([&] { return net.plain(); });
  const replay::RecordedStep step = recorded_with_link(net);
  Session session = moving_all(step, 2_MiB, 2_MiB);
  const auto planned = [&] { return session.backward([&] { return net.loss(); }); };
  const Bytes limit = linked_memory().stats().allocated + 1500_KiB;
  EXPECT_GT(session.plan().predicted_peak, limit);
  for (const FrontEnd* const front : {&front_end(), &kTranslating}) {
    const FrontEndScope scope(*front);
    const memory::HeldLimit held(linked_memory(), limit);
    linked_memory().release_cached();
    linked_memory().reset_peak();
    expect_same(expected, net.step(planned));
    EXPECT_TRUE(session.last_step().followed_plan);
    EXPECT_LE(linked_memory().stats().mapped_peak, limit);
  }
}

TEST(HiddenCopies, OfWhatIsWrittenAfterwardsAreOverBefore) {
  Dropouts net(1, 16, 64);
  const auto loss = [&] {
    at::Tensor h = net.layers[0]->as<torch::nn::Linear>()->forward(net.x);
    const at::Tensor twice = h * 2;
    const at::Tensor sine = twice.sin();  // saves `twice`, which is made again of h
    const at::Tensor unused = h.cos();    // saves h, and nobody goes backward there
    h.detach().zero_();
    return sine.mean();
  };
  const auto expected = net.step([&] {
    const at::Tensor value = loss();
    value.backward();
    return value;
  });
  replay::RecordedStep step = replay::record_step(loss, linked_memory());
  step.graph.moves.host = plan::MoveCost{.overlaps = true, .budget = std::nullopt};
  plan::MemoryPlan plan = plan::make_plan(step.graph, "none", std::nullopt);
  for (plan::OpId op = 0; op < step.graph.flow.ops(); ++op) {
    const plan::ValueId made = step.graph.flow.outputs(op).front().value;
    const std::string& name = step.graph.ops[plan::at(op)].name;
    if (name == "aten::addmm") plan.actions[plan::at(made)] = plan::kMove;
    if (name == "aten::mul.Scalar") plan.actions[plan::at(made)] = plan::kRecompute;
  }
  Session session = following(step, plan::staged(step.graph, plan, 64_KiB, 0));
  session.verify_replays(VerifyReplay::Off);  // it would find the other bits first
  const auto run = [&](std::uint64_t seed) {
    const OrderOfChance order(seed);
    auto found = net.step([&] { return session.backward(loss); });
    Streams::instance().leave_out_wait(std::nullopt);
    EXPECT_EQ(session.last_step().replayed_ops, 1);
    EXPECT_GT(session.last_step().moved_bytes, 0);
    return found;
  };
  for (std::uint64_t seed = 0; seed < 60; ++seed) expect_same(expected, run(seed));
  // Of the copy for what makes h, of what writes h for the copy, or of what reads it again.
  int seen = 0;
  for (std::int64_t n = 0; n < 8; ++n) {
    bool differs = false;
    for (std::uint64_t seed = 0; seed < 60 && !differs; ++seed) {
      Streams::instance().leave_out_wait(n);
      differs = !same_bits(run(seed)[1], expected[1]);
    }
    seen += differs ? 1 : 0;
  }
  EXPECT_GE(seen, 2);
}

TEST(HiddenCopies, AreMeasuredByTheDevicesClock) {
  const plan::MoveCost cost = replay::measured_move_cost(linked_memory());
  EXPECT_TRUE(cost.overlaps);
  EXPECT_FALSE(replay::measured_move_cost(memory::device_memory(c10::kCPU)).overlaps);
  const SimulatedSpeed speed = simulated_speed();
  EXPECT_NEAR(cost.out_seconds_per_byte * speed.bytes_per_second, 1, 0.02);
  EXPECT_NEAR(cost.in_seconds_per_byte * speed.bytes_per_second, 1, 0.02);
  EXPECT_NEAR(cost.seconds_per_copy / speed.copy_latency, 1, 0.1);
}

}  // namespace
}  // namespace snug::testing
