// Planned steps on an accelerator whose streams come to their work when chance says: the bits of the plain step, in one
// stream and in two, and other bits where a wait is missing.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include "snug/snug.h"
#include "tests/device/seeded_step.h"
#include "tests/device/simulated_device.h"
#include "tests/device/test_device.h"
#include "tests/equivalence/bitwise.h"

namespace snug::testing {
namespace {

[[maybe_unused]] const bool kInstalledForStreams = (install_simulated_devices(), true);
const c10::Device kStreamed(kSimulated, 0);

/// SNUG_SEEDS: of the tests that take any number of orders; 1,000 with make test-long.
std::uint64_t seeds() {
  const char* const asked = std::getenv("SNUG_SEEDS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 60;
}

c10::Stream side_stream() {
  static const c10::Stream stream = c10::impl::VirtualGuardImpl(kSimulated).getStreamFromGlobalPool(kStreamed);
  return stream;
}

void let_wait(c10::Stream stream, c10::Stream on) {
  c10::Event event(kSimulated);
  event.record(on);
  event.block(stream);
}

/// Two branches, the second in a stream of its own, as a program has to write it: streams wait for what they read, and
/// memory is kept for those that use it.
struct Branches : torch::nn::Module {
  explicit Branches(bool two_streams) : two(two_streams) {
    for (int i = 0; i < 8; ++i) layers->push_back(torch::nn::Linear(16, 16));
    register_module("layers", layers);
    to(kStreamed);
  }
  at::Tensor apply(int i, const at::Tensor& x) { return layers[i]->as<torch::nn::Linear>()->forward(x).tanh(); }

  at::Tensor second(at::Tensor x) {
    for (int i = 2; i < 5; ++i) x = torch::dropout(apply(i, x), 0.2, true);
    return x;
  }

  at::Tensor loss(const at::Tensor& x) {
    const at::Tensor stem = apply(1, apply(0, x));
    at::Tensor of_second;
    if (two) {
      const c10::Stream main = current_simulated_stream(kStreamed);
      let_wait(side_stream(), main);
      stem.record_stream(side_stream());
      {
        const c10::StreamGuard in(side_stream());
        of_second = second(stem);
      }
      of_second.record_stream(main);
      const at::Tensor of_first = apply(6, apply(5, stem));
      let_wait(main, side_stream());
      return apply(7, of_first * of_second).square().mean();
    }
    of_second = second(stem);
    return apply(7, apply(6, apply(5, stem)) * of_second).square().mean();
  }

  torch::nn::ModuleList layers;
  bool two;
};

class StreamOrder : public ::testing::Test {
 protected:
  void prepare(bool two_streams) {
    torch::manual_seed(3);
    net_ = std::make_shared<Branches>(two_streams);
    x_ = torch::randn({64, 16}).to(kStreamed);
    expected_ = step([&] { return plain(); });
    memory::DeviceMemory& memory = memory::device_memory(kStreamed);
    const Bytes before = memory.stats().allocated;
    const auto recorded = replay::record_step([&] { return net_->loss(x_); }, memory);
    const Bytes peak = plan::make_plan(recorded.graph, "none", std::nullopt).predicted_peak;
    session_.emplace(recorded, "optimal", plan::Budget{before + (peak - before) * 6 / 10}, memory);
    expect_same(expected_, step([&] { return planned(); }));
    EXPECT_GT(session_->last_step().replayed_ops, 4);
    EXPECT_EQ(session_->last_step().divergence, "");
    memory.set_limit(std::nullopt);
  }

  at::Tensor plain() {
    const at::Tensor loss = net_->loss(x_);
    loss.backward();
    return loss;
  }
  at::Tensor planned() {
    return session_->backward([&] { return net_->loss(x_); });
  }

  /// The loss and all gradients of a step from a seed, which leaves no gradient.
  std::vector<at::Tensor> step(const std::function<at::Tensor()>& run) { return seeded_step(*net_, run); }

  [[nodiscard]] bool is_expected(const std::vector<at::Tensor>& found) const {
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!same_bits(found[i], expected_[i])) return false;
    }
    return true;
  }

  std::shared_ptr<Branches> net_;
  at::Tensor x_;
  std::vector<at::Tensor> expected_;
  std::optional<Session> session_;
};

TEST_F(StreamOrder, GivesThePlainBitsWheneverItsStreamComesToIt) {
  prepare(false);
  for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
    const OrderOfChance order(seed);
    EXPECT_TRUE(is_expected(step([&] { return planned(); }))) << "seed " << seed;
  }
}

TEST_F(StreamOrder, GivesThePlainBitsWheneverItsTwoStreamsComeToIt) {
  prepare(true);
  for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
    const OrderOfChance order(seed);
    EXPECT_TRUE(is_expected(step([&] { return plain(); }))) << "seed " << seed << ": the program itself is wrong";
    EXPECT_TRUE(is_expected(step([&] { return planned(); }))) << "seed " << seed;
  }
}

TEST_F(StreamOrder, ReplaysWaitForStreamsOnlyWhereThereAreSeveral) {
  const auto waits_of = [&](const std::function<at::Tensor()>& run) {
    const std::int64_t before = Streams::instance().waits();
    (void)step(run);
    return Streams::instance().waits() - before;
  };
  prepare(false);
  EXPECT_EQ(waits_of([&] { return plain(); }), waits_of([&] { return planned(); }));
  prepare(true);
  EXPECT_LT(waits_of([&] { return plain(); }), waits_of([&] { return planned(); }));
}

TEST_F(StreamOrder, AMissingWaitShowsAsOtherBits) {
  prepare(true);
  session_->verify_replays(VerifyReplay::Off);  // it would find the other bits first
  const std::int64_t before = Streams::instance().waits();
  (void)step([&] { return planned(); });
  const std::int64_t waits = Streams::instance().waits() - before;
  int seen = 0;
  for (std::int64_t n = 0; n < waits; ++n) {
    bool differs = false;
    for (std::uint64_t seed = 0; seed < 100 && !differs; ++seed) {
      const OrderOfChance order(seed);
      Streams::instance().leave_out_wait(n);
      differs = !is_expected(step([&] { return planned(); }));
      Streams::instance().leave_out_wait(std::nullopt);
    }
    seen += differs ? 1 : 0;
  }
  EXPECT_GT(seen, 1) << "of " << waits;
}

/// Backward needs x, and does nothing with it.
struct Looked : torch::autograd::Function<Looked> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x + 1;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          std::vector<at::Tensor> gradients) {
    (void)context->get_saved_variables();
    return gradients;
  }
};

/// The second stream reads what a replay has just made in the first, and in forward what the plan drops in the first.
TEST(ReplayedValues, AreWaitedForByOtherStreams) {
  torch::manual_seed(3);
  const at::Tensor w = torch::randn({16, 16}).to(kStreamed).requires_grad_(), x = torch::randn({64, 16}).to(kStreamed);
  const auto gradient = [&] {
    w.mutable_grad() = at::Tensor();
    at::Tensor loss;
    const Region region(Recompute{});
    at::Tensor h = x.mm(w).tanh();
    const c10::Stream main = current_simulated_stream(kStreamed);
    let_wait(side_stream(), main);
    at::Tensor squares;
    {
      const c10::StreamGuard in(side_stream());
      squares = h * h;
    }
    at::Tensor looked = Looked::apply(h);
    h = at::Tensor();  // backward needs it: without a plan it stays for the second stream, too
    looked = looked + 1;
    let_wait(main, side_stream());
    loss = (squares + looked).sum();
    const std::int64_t waits = Streams::instance().waits();
    loss.backward();
    EXPECT_EQ(region.replayed_ops(), 2);
    return std::pair(std::vector{loss.detach().to(at::kCPU), w.grad().to(at::kCPU)},
                     Streams::instance().waits() - waits);
  };
  const auto [expected, waits] = gradient();
  for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
    const OrderOfChance order(seed);
    SCOPED_TRACE(seed);
    expect_same(gradient().first, expected);
  }
  // Without one of those in backward, and there is no other but the engine's, other bits come.
  bool differs = false;
  for (std::int64_t n = 2; n < 2 + waits && !differs; ++n) {
    for (std::uint64_t seed = 0; seed < 60 && !differs; ++seed) {
      const OrderOfChance order(seed);
      Streams::instance().leave_out_wait(n);
      differs = !same_bits(gradient().first[1], expected[1]);
      Streams::instance().leave_out_wait(std::nullopt);
    }
  }
  EXPECT_TRUE(differs);
}

/// In the forward pass the program waits for the device; that is no operator.
TEST(CopiesToTheHost, ThatDoNotBlockAreOverBeforeTheHostReadsThemAgain) {
  torch::manual_seed(7);
  const at::Tensor x = torch::randn({64, 64}).to(kStreamed), weights = torch::randn({64, 64}).to(kStreamed);
  const auto gradient = [&](const RegionAction& action) {
    const at::Tensor w = weights.detach().clone().requires_grad_();
    at::Tensor loss;
    {
      const Region region(action);
      const at::Tensor h = x.matmul(w).tanh();
      const at::Tensor on_host = h.to(at::kCPU, /*non_blocking=*/true);
      EXPECT_TRUE(on_host.is_pinned());
      Streams::instance().wait_for_all();
      loss = (on_host.sin() * on_host).sum();
    }
    loss.backward();
    return std::vector{loss.detach(), w.grad().to(at::kCPU)};
  };
  const auto expected = gradient(Keep{});
  for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
    const OrderOfChance order(seed);
    SCOPED_TRACE(seed);
    expect_same(gradient(Recompute{}), expected);
  }
}

/// What saves a tensor may have left the stream that made it when the next operator shows what becomes of it.
TEST(Offloading, WaitsForTheStreamThatMakesWhatGoes) {
  torch::manual_seed(8);
  const at::Tensor x = torch::randn({64, 64}).to(kStreamed), weights = torch::randn({64, 64}).to(kStreamed);
  const c10::Stream main = current_simulated_stream(kStreamed);
  const auto gradient = [&](const RegionAction& action) {
    const at::Tensor w = weights.detach().clone().requires_grad_(), u = x.detach().clone().requires_grad_();
    at::Tensor loss;
    {
      const Region region(action);
      at::Tensor h;
      let_wait(side_stream(), main);
      {
        const c10::StreamGuard in(side_stream());
        h = x.matmul(w).tanh();  // which saves what it makes
      }
      const at::Tensor elsewhere = u.sin();
      let_wait(main, side_stream());
      loss = h.sum() + elsewhere.sum();
      EXPECT_GE(region.offloaded_bytes(), std::holds_alternative<Offload>(action) ? h.nbytes() : 0);
    }
    loss.backward();
    return std::vector{loss.detach().to(at::kCPU), w.grad().to(at::kCPU), u.grad().to(at::kCPU)};
  };
  const auto expected = gradient(Keep{});
  for (std::uint64_t seed = 0; seed < seeds(); ++seed) {
    const OrderOfChance order(seed);
    SCOPED_TRACE(seed);
    expect_same(gradient(Offload{.min_bytes = 1}), expected);
  }
}

}  // namespace
}  // namespace snug::testing
