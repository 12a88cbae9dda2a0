// Checkpoints, regions and sessions beneath DistributedDataParallel's reducer, whose hooks on the gradient accumulators
// must be called once for each weight: the cases of test/distributed/test_c10d_common.py (checkpointing) and
// accelerate#389.
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/reducer.h"

namespace snug {
namespace {

namespace nn = torch::nn;

class DoneWork final : public c10d::Work {
 public:
  explicit DoneWork(const std::vector<at::Tensor>& tensors)
      : future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
    future_->markCompleted(c10::IValue(tensors));
  }
  bool wait(std::chrono::milliseconds) override { return true; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// The sum over one process is what it has.
class OneProcess final : public c10d::Backend {
 public:
  OneProcess() : Backend(/*rank=*/0, /*size=*/1) {}
  const std::string getBackendName() const override { return "one process"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&) override {
    ++reduced;
    return c10::make_intrusive<DoneWork>(tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions&) override {
    return c10::make_intrusive<DoneWork>(tensors);
  }
  int reduced = 0;
};

std::unique_ptr<c10d::Reducer> reducer_for(const std::vector<at::Tensor>& parameters,
                                           c10::intrusive_ptr<c10d::ProcessGroup> group, bool find_unused) {
  std::vector<std::vector<std::size_t>> buckets;
  for (std::size_t i = parameters.size(); i-- > 0;) buckets.push_back({i});
  return testing::reducer_of(parameters, buckets, std::move(group), find_unused, false);
}

struct NetImpl : nn::Module {
  NetImpl()
      : first(register_module("first", nn::Linear(8, 8))),
        second(register_module("second", nn::Linear(8, 8))),
        unused(register_module("unused", nn::Linear(8, 8))) {}
  nn::Linear first, second, unused;
};
TORCH_MODULE(Net);

using Run = std::function<at::Tensor(const std::function<at::Tensor(at::Tensor)>&, at::Tensor)>;

/// How a checkpointed layer is called.
struct Way {
  const char* name;
  Run run;
};
const Way kPlainWay{"plain", [](const auto& f, const at::Tensor& x) { return f(x); }};
const Way kReplayWay{"replay", [](const auto& f, const at::Tensor& x) { return checkpoint(f, x); }};
const Way kRerunWay{"rerun", [](const auto& f, const at::Tensor& x) { return checkpoint({.mode = Rerun{}}, f, x); }};

struct ReducerCase {
  const char* name;
  bool uses_all;  // of the weights
  at::Tensor (*forward)(NetImpl& net, const Run& run, const at::Tensor& x);
};

at::Tensor dropped(nn::Linear& layer, const at::Tensor& x) { return torch::dropout(layer(x).tanh(), 0.2, true); }

const ReducerCase kReducerCases[] = {
    {"test_ddp_checkpointing_once", true,
     [](NetImpl& n, const Run& run, const at::Tensor& x) {
       return n.unused(run([&n](const at::Tensor& y) { return dropped(n.second, y); }, n.first(x)));
     }},
    {"test_ddp_checkpointing_unused_params", false,
     [](NetImpl& n, const Run& run, const at::Tensor& x) {
       return run([&n](const at::Tensor& y) { return dropped(n.second, y); }, n.first(x));
     }},
    {"test_ddp_checkpointing_twice", false,
     [](NetImpl& n, const Run& run, const at::Tensor& x) {
       const auto layer = [&n](const at::Tensor& y) { return dropped(n.second, y); };
       return run(layer, run(layer, n.first(x)));
     }},
    {"test_ddp_checkpointing_weight_sharing", false, [](NetImpl& n, const Run& run, const at::Tensor& x) {
       const auto layer = [&n](const at::Tensor& y) {
         return torch::linear(y, n.first->weight, n.second->bias).sigmoid();
       };
       return run(layer, n.first(run(layer, n.second(x))));
     }}};

struct Result {
  std::vector<at::Tensor> gradients;
  int reduced = 0;
};

/// Three steps under a reducer; `step` runs forward and backward of each.
Result train(const ReducerCase& c, const Run& run, bool in_session) {
  torch::manual_seed(5);
  Net net;
  const at::Tensor x = torch::randn({4, 8});
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  const auto backend = c10::make_intrusive<OneProcess>();
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  const auto reducer = reducer_for(net->parameters(), group, !c.uses_all);
  const auto forward = [&] {
    const at::Tensor y = c.forward(*net, run, x);
    reducer->prepare_for_backward({y});
    return y.square().mean();
  };
  Result result;
  std::optional<Session> session;
  if (in_session) {
    auto recorded =
        replay::record_step([&] { return c.forward(*net, run, x).square().mean(); }, testing::test_memory());
    session.emplace(std::move(recorded), "every_block", std::nullopt, testing::test_memory());
    backend->reduced = 0;
  }
  for (int i = 0; i < 3; ++i) {
    torch::manual_seed(20 + i);
    net->zero_grad();
    if (session) {
      session->backward(forward);
    } else {
      forward().backward();
    }
    for (const at::Tensor& p : net->parameters()) {
      result.gradients.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
    }
  }
  result.reduced = backend->reduced;
  return result;
}

class DataParallel : public ::testing::TestWithParam<ReducerCase> {};
INSTANTIATE_TEST_SUITE_P(Checkpoint, DataParallel, ::testing::ValuesIn(kReducerCases),
                         [](const auto& c) { return c.param.name; });

TEST_P(DataParallel, EveryWeightIsReadyOnce) {
  const Result plain = train(GetParam(), kPlainWay.run, false);
  EXPECT_GE(plain.reduced, 3 * 6);
  const auto expect_the_same = [&](const Result& other, const std::string& how) {
    EXPECT_EQ(other.reduced, plain.reduced) << how;
    ASSERT_EQ(other.gradients.size(), plain.gradients.size());
    for (std::size_t k = 0; k < plain.gradients.size(); ++k)
      EXPECT_TRUE(testing::same_bits(plain.gradients[k], other.gradients[k])) << how << ", gradient " << k;
  };
  for (const Way& way : {kReplayWay, kRerunWay}) {
    expect_the_same(train(GetParam(), way.run, false), way.name);
    expect_the_same(train(GetParam(), way.run, true), std::string(way.name) + " in a session");
  }
  expect_the_same(train(GetParam(), kPlainWay.run, true), "a session");
}

}  // namespace
}  // namespace snug
