// Recording a step leaves no trace, however the step writes what was there before; and none in what is predicted.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/plan/run/presets.h"
#include "snug/record/recording.h"
#include "snug/replay/undone_writes.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;
using testing::test_memory;

/// A weight, and tensors of the step's own.
struct Buffers {
  at::Tensor weight = torch::randn({64, 64}).requires_grad_();
  at::Tensor buffer = torch::randn({64, 64});
  at::Tensor loss(const at::Tensor& x) const { return x.matmul(weight).tanh().square().mean(); }
};

using WritingStep = std::function<at::Tensor(const Buffers&, const at::Tensor&)>;
const std::vector<std::pair<std::string, WritingStep>>& writing_steps() {
  static const std::vector<std::pair<std::string, WritingStep>> steps{
      {"replaced whole",
       [](const Buffers& b, const at::Tensor& x) {
         b.buffer.copy_(x);
         return b.loss(x);
       }},
      {"replaced whole, by a result, and read then",
       [](const Buffers& b, const at::Tensor& x) {
         const torch::NoGradGuard no_grad;
         at::Tensor out = b.buffer;
         at::div_out(out, x, x.norm());
         const torch::AutoGradMode with_gradients(true);
         return b.loss(x * b.buffer);
       }},
      {"by code that is not recorded, and was never met",
       [](const Buffers& b, const at::Tensor& x) {
         const record::Unrecorded compiled({b.buffer});
         auto* const data = b.buffer.mutable_data_ptr<float>();
         for (int i = 0; i < 64; ++i) data[i] += 1;
         return b.loss(x);
       }},
      {"in between by something unseen",
       [](const Buffers& b, const at::Tensor& x) {
         b.buffer.add_(1);
         b.buffer.mutable_data_ptr<float>()[0] = 7;
         b.buffer.unsafeGetTensorImpl()->bump_version();
         b.buffer.mul_(2);
         return b.loss(x);
       }},
      {"by its own backward pass's hook, and after it",
       [](const Buffers& b, const at::Tensor& x) {
         const at::Tensor y = x.matmul(b.weight);
         y.register_hook([buffer = b.buffer](const at::Tensor& gradient) {
           const torch::NoGradGuard no_grad;
           buffer.add_(gradient.sum());
         });
         const at::Tensor loss = y.tanh().square().mean();
         loss.backward();
         b.buffer.add_(loss.detach());
         return loss;
       }},
  };
  return steps;
}

TEST(NoTrace, OfWhatAStepWrites) {
  for (const auto& [name, step] : writing_steps()) {
    SCOPED_TRACE(name);
    torch::manual_seed(0);
    const Buffers tensors;
    const at::Tensor x = torch::randn({64, 64}), before = tensors.buffer.clone();
    step(tensors, x);
    ASSERT_FALSE(same_bits(tensors.buffer, before)) << "it does write";
    tensors.buffer.copy_(before);
    tensors.weight.mutable_grad() = at::Tensor();
    for (const auto until : {replay::RecordUntil::UpdateBegins, replay::RecordUntil::Backward}) {
      replay::record_step([&] { return step(tensors, x); }, test_memory(), {.until = until});
      EXPECT_TRUE(same_bits(tensors.buffer, before));
      EXPECT_FALSE(tensors.weight.grad().defined());
    }
  }
}

TEST(NoTrace, OfOneThatFails) {
  const Buffers tensors;
  const at::Tensor x = torch::randn({64, 64}), before = tensors.buffer.clone();
  const auto step = [&]() -> at::Tensor {
    tensors.buffer.copy_(x);
    throw std::runtime_error("in the middle");
  };
  EXPECT_THROW(replay::record_step(step, test_memory()), std::runtime_error);
  EXPECT_TRUE(same_bits(tensors.buffer, before));
}

TEST(NoTrace, OfOneThatIsStoppedAnywhere) {
  torch::manual_seed(0);
  const Buffers tensors;
  const at::Tensor x = torch::randn({64, 64}), before = tensors.buffer.clone();
  const auto step = [&] {
    tensors.buffer.copy_(x);
    return tensors.loss(torch::dropout(x, 0.5, true));
  };
  (void)replay::record_step(step, test_memory());
  const auto random = at::detail::getDefaultCPUGenerator().get_state();
  const Bytes allocated = test_memory().stats().allocated;
  int stopped = 0, asked = 0, ended = 0;
  const auto stop = [&] { return ++asked > stopped; };
  for (bool recorded = false; !recorded; ++stopped) {
    SCOPED_TRACE(stopped);
    ASSERT_LT(stopped, 100);
    asked = 0;
    try {
      (void)replay::record_step(step, test_memory(), {.stop = stop});
      recorded = true;
    } catch (const Stopped&) {
      ++ended;
      EXPECT_EQ(asked, stopped + 1) << "nothing runs on behind it";
    }
    EXPECT_TRUE(same_bits(tensors.buffer, before));
    EXPECT_FALSE(tensors.weight.grad().defined());
    EXPECT_TRUE(same_bits(at::detail::getDefaultCPUGenerator().get_state(), random));
    EXPECT_EQ(test_memory().stats().allocated, allocated);
  }
  EXPECT_GT(ended, 20) << "operators and what backward asks for, of two runs";
}

TEST(NoTrace, OfAnUpdateThatDrawsAndOfWhatFollowsItsEnd) {
  torch::manual_seed(0);
  const Buffers tensors;
  const at::Tensor x = torch::randn({64, 64}), weight = tensors.weight.detach().clone(),
                   before = tensors.buffer.clone();
  at::Generator own = at::detail::createCPUGenerator(5);
  const at::Tensor drawn = own.get_state();
  int updates = 0;
  const auto update = [&] {
    const torch::NoGradGuard no_grad;
    tensors.weight.add_(torch::empty({64, 64}).normal_(0, 1, own));
    ++updates;
  };
  // The update begins where the weight is first written: in front of an operator that does not run.
  const auto step = [&] {
    struct AtItsEnd {
      const at::Tensor& buffer;
      ~AtItsEnd() { buffer.add_(1); }
    } const at_its_end{tensors.buffer};
    at::Tensor loss = tensors.loss(x);
    loss.backward();
    const torch::NoGradGuard no_grad;
    tensors.weight.sub_(tensors.weight.grad());
    return loss;
  };
  replay::record_step(step, test_memory(), {.update = update, .until = replay::RecordUntil::UpdateBegins});
  EXPECT_EQ(updates, 4) << "twice in each recording";
  EXPECT_TRUE(same_bits(own.get_state(), drawn));
  EXPECT_TRUE(same_bits(tensors.weight.detach(), weight));
  EXPECT_TRUE(same_bits(tensors.buffer, before));
}

/// A step that keeps two large averages, read and unread, and an input that it writes.
at::Tensor averaging(const Buffers& tensors, const std::vector<at::Tensor>& averages, const at::Tensor& batch) {
  at::Tensor h = batch;
  for (int i = 0; i < 6; ++i) h = h.matmul(tensors.weight).tanh();
  averages[0].mul_(0.9).add_(h.detach(), 0.1);
  averages[1].copy_(h.detach());
  return h.square().mean();
}

TEST(NoTrace, InWhatIsPredicted) {
  const Buffers tensors;
  const at::Tensor x = torch::randn({4096, 64});
  const std::vector<at::Tensor> averages{torch::randn({4096, 64}), torch::randn({4096, 64})};
  const auto step = [&] { return averaging(tensors, averages, x); };
  auto recorded = replay::record_step(step, test_memory());
  const Bytes unplanned = plan::plan_none(recorded.graph).predicted_peak;
  for (const double share : {1.0, 0.8}) {
    tensors.weight.mutable_grad() = at::Tensor();
    Session session(recorded, "optimal", plan::Budget::for_share(share, unplanned), test_memory());
    test_memory().reset_peak();
    session.backward(step);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_LE(test_memory().stats().allocated_peak, session.plan().predicted_peak);
    EXPECT_GE(test_memory().stats().allocated_peak, session.plan().predicted_peak - 16_KiB);
  }
}

TEST(NoTrace, InTheSecondsOfAStep) {
  const Buffers tensors;
  const at::Tensor x = torch::randn({64, 64}), large = torch::zeros({48 << 20});  // 192 MiB
  record::StepClock all(testing::test_device()), without_copies(testing::test_device());
  {
    replay::UndoneWrites undone(&without_copies);
    large[0].fill_(1);
    undone.undo();
  }
  const auto until_now = [](record::StepClock& clock) {
    const auto end = clock.now();
    clock.settle();
    return clock.seconds(0, end);
  };
  const double copying = until_now(all) - until_now(without_copies);
  const auto step = [&] {
    large[0].fill_(1);
    return tensors.loss(x);
  };
  int updates = 0;
  const auto update = [&] {
    const torch::NoGradGuard no_grad;
    tensors.weight.mul_(0.9);
    ++updates;
  };
  const auto recorded = replay::record_step(step, test_memory(), {.update = update});
  EXPECT_EQ(updates, 4);
  EXPECT_LT(recorded.graph.step_seconds, copying / 4) << "one element is written; all are copied";
  EXPECT_FLOAT_EQ(large[0].item<float>(), 0);
}

/// While it lives, contents of the CPU's memory cannot leave it.
struct NoPlaceForCopies {
  NoPlaceForCopies() { ::setenv("TMPDIR", "/dev/null/nowhere", 1); }
  ~NoPlaceForCopies() {
    if (before) {
      ::setenv("TMPDIR", before->c_str(), 1);
    } else {
      ::unsetenv("TMPDIR");
    }
  }
  NoPlaceForCopies(const NoPlaceForCopies&) = delete;
  NoPlaceForCopies& operator=(const NoPlaceForCopies&) = delete;
  std::optional<std::string> before =
      std::getenv("TMPDIR") != nullptr ? std::optional<std::string>(std::getenv("TMPDIR")) : std::nullopt;
};

TEST(NoTrace, IsLeftWithoutCopiesByAnUpdateThatChangesNothing) {
  SNUG_ONLY_ON_THE_CPU("a file that copies move to");
  const Buffers tensors;
  const at::Tensor x = torch::randn({64, 64});
  const auto step = [&] { return tensors.loss(x); };
  const NoPlaceForCopies none;
  int updates = 0;
  replay::Rehearsal update([&] {
    const torch::NoGradGuard no_grad;
    tensors.weight.mul_(1);
    ++updates;
  });
  EXPECT_THROW(replay::record_step(step, test_memory(), {.update = update}), Error);
  EXPECT_EQ(updates, 0);
  update.writes = replay::Rehearsal::Writes::Nothing;
  EXPECT_NO_THROW(replay::record_step(step, test_memory(), {.update = update}));
  EXPECT_EQ(updates, 4);
}

TEST(NoTrace, TakesNoMemoryOfTheBudget) {
  const Buffers tensors;
  const at::Tensor large = torch::zeros({8 << 20});  // 32 MiB
  const at::Tensor x = torch::randn({64, 64});
  const auto step = [&] {
    large.fill_(1);
    return tensors.loss(x);
  };
  const Bytes limit = test_memory().stats().allocated + 4_MiB;
  EXPECT_NO_THROW(replay::record_step_within(limit, step, test_memory()));
  EXPECT_FLOAT_EQ(large[0].item<float>(), 0);
}

}  // namespace
}  // namespace snug
