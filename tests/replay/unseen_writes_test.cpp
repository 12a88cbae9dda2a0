// Results that a loop of one's own writes over, and says so by raising their version.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/library.h>

#include <utility>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/record/recording.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using ::testing::HasSubstr;
using testing::same_bits;

at::Tensor square_leaf() {
  torch::manual_seed(0);
  return torch::rand({16, 16}).requires_grad_();
}

/// Doubles in place by a loop of its own, which no dispatcher sees.
struct DoubledByALoop : torch::autograd::Function<DoubledByALoop> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x) {
    auto* const data = x.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) data[i] *= 2;
    context->mark_dirty({x});
    return x;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*, std::vector<at::Tensor> gradients) {
    return {gradients[0] * 2};
  }
};

TEST(UnseenWrites, AreKeptAndWhatWasThereBeforeIsMadeAgain) {
  const at::Tensor x = square_leaf();
  const auto function = [](const at::Tensor& in) {
    at::Tensor h = in.sin();
    const at::Tensor before = h.exp();  // is replayed from what was there before the loop
    h = DoubledByALoop::apply(h);
    return (h.exp() * before).sin().sum();
  };
  function(x).backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  for (const bool keep_sines : {false, true}) {
    SCOPED_TRACE(keep_sines);
    at::Tensor y;
    const Region region(keep_sines ? Selective{.keep = {"aten::sin"}} : Selective{});
    y = function(x);
    y.backward();
    EXPECT_TRUE(same_bits(expected, std::exchange(x.mutable_grad(), at::Tensor())));
    EXPECT_GE(region.replayed_ops(), 3);
    const auto lines = region.opaque_values();
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_THAT(lines[0], HasSubstr("aten::sin"));
  }
}

/// In the way of `matmul` of three dimensions, a storage has two version counters.
TEST(UnseenWrites, AreSeenThroughAnyTensorOfTheStorage) {
  const at::Tensor x = square_leaf();
  using Program = at::Tensor (*)(const at::Tensor&);
  const std::vector<std::pair<const char*, Program>> programs{
      {"matmul",
       [](const at::Tensor& in) {
         return DoubledByALoop::apply(at::matmul(in.view({2, 8, 16}), in)).exp().sin().sum();
       }},
      {"bmm",
       [](const at::Tensor& in) {
         const at::Tensor heads = in.view({2, 2, 4, 16});
         return DoubledByALoop::apply(at::matmul(heads, heads.transpose(-1, -2))).exp().sin().sum();
       }},
      {"linear",
       [](const at::Tensor& in) {
         return DoubledByALoop::apply(at::linear(in.view({2, 8, 16}), in)).exp().sin().sum();
       }},
      {"data",
       [](const at::Tensor& in) {
         at::Tensor h = in.sin();
         h.variable_data().mul_(2);
         h = DoubledByALoop::apply(h);
         return h.exp().sin().sum();
       }},
      {"foreach",
       [](const at::Tensor& in) {
         at::Tensor a = in.sin().detach(), b = in.cos().detach();
         at::_foreach_mul_({a, b}, 2);
         a = DoubledByALoop::apply(a);
         return ((a + 1).exp() * in * b).sin().sum();
       }},
      {"out",
       [](const at::Tensor& in) {
         at::Tensor a = in.sin().detach(), b = in.cos().detach();
         at::sub_out(a, a, b);
         a = DoubledByALoop::apply(a);
         return ((a + 1).exp() * in * b).sin().sum();
       }},
  };
  for (const auto& [name, program] : programs) {
    SCOPED_TRACE(name);
    program(x).backward();
    const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
    at::Tensor loss;
    {
      const Region region(Recompute{});
      loss = program(x);
      EXPECT_EQ(region.opaque_values().size(), 1U);
    }
    loss.backward();
    EXPECT_TRUE(same_bits(expected, std::exchange(x.mutable_grad(), at::Tensor())));
  }
}

TEST(UnseenWrites, RecordedOnesFindTheLeafThroughAnyOfItsTensors) {
  at::Tensor weight = torch::rand({16, 16});
  weight.mul_(1);  // its version is not zero
  const at::Tensor before = weight.clone(), x = square_leaf();
  const auto program = [&] {
    weight.copy_(before);
    const at::Tensor p = (x - weight.variable_data()).exp();
    weight.mul_(2);
    return (p * weight).sum();
  };
  program().backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  const Region region(Recompute{});
  program().backward();
  EXPECT_TRUE(same_bits(expected, x.grad()));
}

TEST(UnseenWrites, AreNotSeenInPiecesWithCountersOfTheirOwn) {
  const at::Tensor x = square_leaf();
  const auto program = [&] {
    const at::Tensor h = x.sin().detach();
    std::vector<at::Tensor> pieces = at::unsafe_chunk(h, 2);
    at::_foreach_mul_(pieces, 2);
    pieces[1].add_(1);
    return (h * x).sum() + (pieces[0].exp() * pieces[1]).sum();
  };
  program().backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  const Region region(Recompute{});
  program().backward();
  EXPECT_TRUE(same_bits(expected, x.grad()));
  EXPECT_TRUE(region.opaque_values().empty()) << region.opaque_values()[0];
}

TEST(UnseenWrites, HiddenOnesUnderANestedTapeReachTheOuterOne) {
  const at::Tensor x = square_leaf();
  const auto run = [&](bool recorded) {
    torch::nn::BatchNorm1d norm(16);
    const auto inner = [&](const at::Tensor& y) {
      std::optional<Region> region;
      if (recorded) region.emplace(Recompute{});
      return norm(y);
    };
    std::optional<Region> outer;
    if (recorded) outer.emplace(Recompute{});
    const at::Tensor y = (x - norm->running_mean).exp();
    const at::Tensor z = recorded ? checkpoint({.mode = Rerun{}}, inner, y) : inner(y);
    outer.reset();
    (z.sin().sum() + y.square().sum()).backward();
    return std::exchange(x.mutable_grad(), at::Tensor());
  };
  EXPECT_TRUE(same_bits(run(false), run(true)));
}

TEST(UnseenWrites, OfKeptResultsAreSeenWhileTheRegionIsOpen) {
  const at::Tensor x = square_leaf();
  for (const bool open : {true, false}) {
    SCOPED_TRACE(open);
    const auto program = [&] {
      at::Tensor h = x.sin();
      const at::Tensor b = h.exp();
      DoubledByALoop::apply(h);  // nobody reads it again
      return b.sin().sum();
    };
    program().backward();
    const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
    std::optional<Region> region(Selective{.keep = {"aten::sin"}});
    const at::Tensor loss = program();
    if (!open) region.reset();
    loss.backward();
    EXPECT_TRUE(same_bits(expected, std::exchange(x.mutable_grad(), at::Tensor())));
  }
}

/// LibTorch's own example of mark_dirty.
struct Scaled : torch::autograd::Function<Scaled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x) {
    x.mul_(2);
    context->mark_dirty({x});
    return x;
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*, std::vector<at::Tensor> gradients) {
    return {gradients[0] * 2};
  }
};

TEST(UnseenWrites, MayHaveComeBeforeMarkDirty) {
  const at::Tensor x = square_leaf();
  const auto program = [&] { return Scaled::apply(x.sin()).exp().sin().sum(); };
  program().backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  const Region region(Recompute{});
  program().backward();
  EXPECT_TRUE(same_bits(expected, x.grad()));
  const auto lines = region.opaque_values();
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("aten::mul_"));
  EXPECT_THAT(lines[0], HasSubstr("mark_dirty"));
}

TEST(UnseenWrites, ArePlannedFor) {
  const at::Tensor x = torch::rand({128, 128}, at::requires_grad());
  const auto program = [&] {
    at::Tensor h = x;
    for (int i = 0; i < 6; ++i) {
      at::Tensor g = h.sin();
      const at::Tensor b = g.exp();
      g = DoubledByALoop::apply(g);
      h = (g.tanh() * b).sin();
    }
    return h.sum();
  };
  program().backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  const auto recorded = replay::record_step(program, testing::test_memory());
  const plan::Planner planner(recorded.graph, "optimal");
  const Bytes most = plan::plan_none(recorded.graph).predicted_peak, least = planner.floor(recorded.graph);
  for (int i = 0; i <= 4; ++i) {
    const Bytes limit = plan::Budget::for_limit(1).floor_for(most - (most - least) * i / 4);
    SCOPED_TRACE(::testing::Message() << limit << " of " << most);
    testing::test_memory().release_cached();
    Session session(recorded, planner, plan::Budget::for_limit(limit), testing::test_memory());
    session.backward(program);
    EXPECT_TRUE(same_bits(expected, std::exchange(x.mutable_grad(), at::Tensor())));
    EXPECT_EQ(session.last_step().replayed_ops, plan::simulate(session.graph(), session.plan()).replayed_ops);
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_EQ(session.last_step().opaque.size(), 6U);
  }
}

TEST(UnseenWrites, AreNotSeenInRecordedOnes) {
  const at::Tensor x = square_leaf();
  const auto function = [](const at::Tensor& in) {
    at::Tensor h = in.sin();
    h.mul_(2);
    h.t().add_(1);
    std::vector<at::Tensor> rows{h[0], h[1]};
    at::_foreach_mul_(rows, 3);
    {
      const at::AutoDispatchBelowADInplaceOrView no_versions;
      h.detach().add_(1);
    }
    at::Tensor all = h.detach();
    at::add_out(all, all, all);
    return (h.detach() * in).exp().sum();
  };
  function(x).backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  const Region region(Recompute{});
  function(x).backward();
  EXPECT_TRUE(same_bits(expected, x.grad()));
  EXPECT_TRUE(region.opaque_values().empty()) << region.opaque_values()[0];
}

// Operators as torch.distributed registers them, of a world of one process: their schemas do not say what they write.
at::Tensor doubled_by_all(const at::Tensor& tensor) {
  auto* const data = tensor.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] *= 2;
  return tensor;
}
std::int64_t g_sums = 0;
at::Tensor sum_over_all(const at::Tensor& tensor) {
  ++g_sums;
  return tensor * 3;
}
/// Says what it writes, as some do.
at::Tensor& triple_over_all(const at::Tensor& tensor, at::Tensor& out) {
  const auto* const from = tensor.const_data_ptr<float>();
  auto* const to = out.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) to[i] = from[i] * 3;
  return out;
}
TORCH_LIBRARY_FRAGMENT(c10d, library) {
  library.def("snug_test_triple_out(Tensor tensor, *, Tensor(a!) out) -> Tensor(a!)");
  library.def("snug_test_double_(Tensor tensor) -> Tensor");
  library.def("snug_test_sum(Tensor tensor) -> Tensor");
}
TORCH_LIBRARY_IMPL(c10d, CPU, library) {
  library.impl("snug_test_double_", doubled_by_all);
  library.impl("snug_test_sum", sum_over_all);
  library.impl("snug_test_triple_out", triple_over_all);
}
at::Tensor call(const char* name, const at::Tensor& tensor) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<at::Tensor(const at::Tensor&)>().call(tensor);
}

TEST(UnseenWrites, OfCollectivesAreKnownAndNoReplayRunsThem) {
  const at::Tensor x = square_leaf(), other = torch::rand({16, 16});
  using Program = at::Tensor (*)(const at::Tensor&, const at::Tensor&);
  const std::vector<std::pair<const char*, Program>> programs{
      {"a result",
       [](const at::Tensor& in, const at::Tensor&) {
         const at::Tensor h = in.detach().sin();
         const at::Tensor before = h.exp();
         call("c10d::snug_test_double_", h);
         return (h.cos() * before * in).exp().sum();
       }},
      {"an input",
       [](const at::Tensor& in, const at::Tensor& given) {
         const at::Tensor scale = given.clone();
         const at::Tensor before = (in.detach() * scale).exp();
         call("c10d::snug_test_double_", scale);
         return (before * in * scale).exp().sum();
       }},
      {"a view",
       [](const at::Tensor& in, const at::Tensor&) {
         const at::Tensor h = in.detach().sin();
         call("c10d::snug_test_double_", h.narrow(0, 0, 4));
         return (h.cos() * in).exp().sum();
       }},
      {"what its schema names",
       [](const at::Tensor& in, const at::Tensor&) {
         at::Tensor buffer = at::zeros_like(in);
         const at::Tensor h = in.detach().sin();
         c10::Dispatcher::singleton()
             .findSchemaOrThrow("c10d::snug_test_triple_out", "")
             .typed<at::Tensor&(const at::Tensor&, at::Tensor&)>()
             .call(h, buffer);
         return (buffer * in).sin().sum();
       }},
      {"a new tensor", [](const at::Tensor& in, const at::Tensor&) {
         return (call("c10d::snug_test_sum", in.detach().sin()).cos() * in).exp().sum();
       }}};
  for (const auto& [name, program] : programs) {
    SCOPED_TRACE(name);
    program(x, other).backward();
    const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
    g_sums = 0;
    const Region region(Recompute{});
    program(x, other).backward();
    EXPECT_TRUE(same_bits(expected, std::exchange(x.mutable_grad(), at::Tensor())));
    EXPECT_GT(region.replayed_ops(), 0);
    EXPECT_LE(g_sums, 1);
    const auto recorded = replay::record_step([&] { return program(x, other); }, testing::test_memory());
    const plan::Planner planner(recorded.graph, "optimal");
    Session session(recorded, planner,
                    plan::Budget::for_limit(plan::Budget::for_limit(1).floor_for(planner.floor(recorded.graph))),
                    testing::test_memory());
    session.backward(program, x, other);
    EXPECT_TRUE(same_bits(expected, std::exchange(x.mutable_grad(), at::Tensor())));
    EXPECT_EQ(session.last_step().divergence, "");
  }
}

TEST(UnseenWrites, OfCodeThatIsNotRecordedAreTold) {
  const at::Tensor x = square_leaf();
  const auto function = [](const at::Tensor& in) {
    const at::Tensor h = in.detach().sin(), before = h.exp();
    at::Tensor made;
    {
      const record::Unrecorded scope({h});
      auto* const data = h.mutable_data_ptr<float>();  // no version rises
      for (std::int64_t i = 0; i < h.numel(); ++i) data[i] *= 2;
      made = h.cos();
      doubled_by_all(made);
    }
    return (h.exp() * before * made * in).sin().sum();
  };
  function(x).backward();
  const at::Tensor expected = std::exchange(x.mutable_grad(), at::Tensor());
  const Region region(Recompute{});
  function(x).backward();
  EXPECT_TRUE(same_bits(expected, x.grad()));
  EXPECT_GT(region.replayed_ops(), 0);
}

TEST(UnseenWrites, ThroughDataOfAParameterAreFoundThoughNothingRecordsAnyMore) {
  SNUG_ONLY_ON_THE_CPU("contents that can be read without waiting");
  const at::Tensor w = torch::randn({64, 64}).requires_grad_(), x = torch::randn({8, 64}).requires_grad_();
  at::Tensor loss;
  {
    const Region region(Recompute{});
    loss = x.mm(w).sin().sum();
  }
  w.data().mul_(2);
  EXPECT_THROW(loss.backward(), Error);
}

}  // namespace
}  // namespace snug
