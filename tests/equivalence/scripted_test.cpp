// Models that snug knows nothing about: TorchScript from a file.
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/script.h>

#include <filesystem>

#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;

class Scripted : public ::testing::Test {
 protected:
  Scripted() : file_(std::filesystem::temp_directory_path() / ("snug_scripted_" + std::to_string(::getpid()) + ".pt")) {
    torch::manual_seed(5);
    torch::jit::Module made("Net");
    for (int i = 0; i < 4; ++i)
      made.register_parameter("w" + std::to_string(i), (torch::randn({256, 256}) * 0.05).requires_grad_(), false);
    made.define(R"(
def forward(self, x):
    for i in range(2):
        x = torch.relu(torch.mm(x, self.w0)) + x
        x = torch.dropout(torch.tanh(torch.mm(x, self.w1)), 0.1, True)
    if bool(x.sum() > 0):
        x = torch.sigmoid(torch.mm(x, self.w2))
    return torch.mm(x, self.w3)
)");
    made.save(file_.string());
  }
  ~Scripted() override { std::filesystem::remove(file_); }

  /// The gradients of three steps on a freshly loaded module.
  template <class Backward>
  std::vector<at::Tensor> train(Backward&& backward) {
    torch::jit::Module net = torch::jit::load(file_.string());
    net.to(testing::test_device());
    net.train();
    const at::Tensor x = torch::full({512, 256}, 0.1);
    std::vector<at::Tensor> gradients;
    torch::manual_seed(9);
    backward(
        net, [&] { return net.forward({x}).toTensor().square().mean(); },
        [&] {
          for (const at::Tensor& p : net.parameters()) {
            gradients.push_back(p.grad().clone());
            p.mutable_grad() = at::Tensor();
          }
        });
    return gradients;
  }

 private:
  std::filesystem::path file_;
};

TEST_F(Scripted, ModuleFromAFileTrainsUnderABudgetUnchanged) {
  // The executor specializes as it runs; without that every run is the first.
  torch::jit::setGraphExecutorOptimize(false);
  const auto plain = train([](auto&, const auto& loss, const auto& collect) {
    for (int step = 0; step < 3; ++step) {
      loss().backward();
      collect();
    }
  });
  std::int64_t replayed = 0;
  const auto planned = train([&](auto&, const auto& loss, const auto& collect) {
    auto& memory = testing::test_memory();
    auto recorded = replay::record_step(loss, memory);
    const plan::Planner planner(recorded.graph, "optimal");
    const Bytes unplanned = plan::plan_none(recorded.graph).predicted_peak, floor = planner.floor(recorded.graph);
    Session session(std::move(recorded), planner, plan::Budget::for_limit((unplanned + floor) / 2 + 3_MiB), memory);
    for (int step = 0; step < 3; ++step) {
      session.backward(loss);
      replayed += session.last_step().replayed_ops;
      collect();
    }
  });
  torch::jit::setGraphExecutorOptimize(true);
  ASSERT_EQ(plain.size(), planned.size());
  for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(same_bits(plain[k], planned[k])) << k;
  EXPECT_GT(replayed, 0);
}

TEST_F(Scripted, AlsoWithItsSpecializingExecutor) {
  const auto run = [&](bool region) {
    return train([&](auto&, const auto& loss, const auto& collect) {
      for (int step = 0; step < 3; ++step) {
        std::optional<Region> dropped;
        if (region) dropped.emplace(Recompute{});
        loss().backward();
        collect();
      }
    });
  };
  const auto plain = run(false), other = run(true);
  for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(same_bits(plain[k], other[k])) << k;
}

}  // namespace
}  // namespace snug
