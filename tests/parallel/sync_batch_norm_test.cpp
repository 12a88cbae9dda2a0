// Batch norms by the rows of all processes, beside one process that has all rows; with other numbers of rows in each,
// and under plans.
#include "snug/ops/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "snug/base/errors.h"
#include "snug/models/resnet.h"
#include "snug/parallel/data_parallel.h"
#include "snug/parallel/group_agreement.h"
#include "snug/parallel/tensor_group.h"
#include "snug/plan/run/presets.h"
#include "snug/replay/fit.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using testing::in_processes;
using testing::same_bits;

models::Resnet residual_net(std::array<std::int64_t, 4> depths = {1, 1, 1, 1}) {
  torch::manual_seed(3);
  return models::Resnet(
      models::ResnetOptions{.depths = depths, .stem = models::SmallImageStem{}, .width = 8, .classes = 5});
}

/// More rows in each process than in the one before it.
struct Rows {
  explicit Rows(const World& world, std::int64_t each = 3, std::int64_t size = 16) {
    for (int rank = 0; rank < world.all()->size(); ++rank) {
      if (rank == world.all()->rank()) first = all;
      if (rank == world.all()->rank()) count = each + rank;
      all += each + rank;
    }
    torch::manual_seed(9);
    images = torch::randn({all, 3, size, size}) * 2 + 1;
    labels = torch::randint(5, {all});
  }
  [[nodiscard]] at::Tensor my_images() const { return images.narrow(0, first, count); }
  [[nodiscard]] at::Tensor my_labels() const { return labels.narrow(0, first, count); }
  /// Whose sum over the processes is the mean over all rows.
  [[nodiscard]] double share() const { return static_cast<double>(count) / static_cast<double>(all); }

  std::int64_t first = 0, count = 0, all = 0;
  at::Tensor images, labels;
};

void expect_nearly(const at::Tensor& expected, const at::Tensor& found, const std::string& what) {
  const double norm = expected.to(at::kDouble).norm().item<double>();
  const double error = (expected - found).to(at::kDouble).norm().item<double>();
  EXPECT_LE(error, 2e-5 * norm + 1e-7) << what << ": " << error / norm;
}

void norms_are_those_of_one_process(World& world) {
  const auto group = tensor_group(world.all());
  const Rows rows(world);
  models::Resnet one = residual_net(), mine = residual_net();
  EXPECT_EQ(models::synchronize_batch_norms(*mine, group), 1 + 4 * 2 + 3);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor expected = one->loss(rows.images, rows.labels);
    const at::Tensor loss = mine->loss(rows.my_images(), rows.my_labels()) * rows.share();
    EXPECT_NEAR(group->sum(loss.detach()).item<double>(), expected.item<double>(), 1e-5);
    expected.backward();
    loss.backward();
  }
  for (const auto& p : one->named_parameters()) {
    const at::Tensor found = mine->named_parameters()[p.key()].grad();
    expect_nearly(p.value().grad(), group->sum(found), p.key());
  }
  for (const auto& b : one->named_buffers()) {
    const at::Tensor found = mine->named_buffers()[b.key()];
    expect_nearly(b.value(), found, b.key());
    EXPECT_TRUE(same_bits(group->max(found), -group->max(-found))) << b.key() << " is the same in all";
  }
  one->eval(), mine->eval();
  expect_nearly(one->forward(rows.images).narrow(0, rows.first, rows.count), mine->forward(rows.my_images()), "eval");
}

TEST(SyncBatchNorm, OfTwoAndFourProcessesIsThatOfOne) {
  in_processes(2, norms_are_those_of_one_process);
  in_processes(4, norms_are_those_of_one_process);
}

/// Losses, gradients and buffers after a few steps of DataParallel.
std::vector<at::Tensor> trained(World& world, Bytes share) {
  const auto group = tensor_group(world.all());
  const Rows rows(world, 12, 32);
  models::Resnet model = residual_net({6, 2, 1, 1});
  (void)models::synchronize_batch_norms(*model, group);
  const DataParallel together(model->parameters(), world.all(), {.combine = DataParallelOptions::Combine::Sum});
  const auto step = [&](int) { return model->loss(rows.my_images(), rows.my_labels()) * rows.share(); };
  std::optional<Session> session;
  if (share < 100) {
    const auto agreement = agreement_of(world.all());
    const Bytes peak =
        plan::plan_none(replay::record_step([&] { return step(0); }, testing::cpu(), {.agreement = agreement}).graph)
            .predicted_peak;
    const at::Tensor most = torch::tensor(peak);
    world.all()->run(AllReduce{most, Reduce::Max});
    session.emplace(fit(step, 0, {.budget = most.item<Bytes>() * share / 100, .agreement = agreement}));
  }
  std::vector<at::Tensor> outcome;
  std::int64_t replayed = 0;
  for (int i = 0; i < 3; ++i) {
    at::Tensor loss;
    if (session) {
      loss = session->backward([&] { return step(0); });
      EXPECT_TRUE(session->last_step().followed_plan) << session->last_step().divergence;
      replayed += session->last_step().replayed_ops;
    } else {
      loss = step(0);
      loss.backward();
    }
    outcome.push_back(loss.detach().clone());
    for (const at::Tensor& p : model->parameters()) {
      outcome.push_back(p.grad().clone());
      const torch::NoGradGuard no_grad;
      p.sub_(p.grad(), 0.1);
      p.mutable_grad().reset();
    }
    for (const at::Tensor& b : model->buffers()) outcome.push_back(b.clone());
  }
  EXPECT_EQ(replayed > 0, session.has_value());
  return outcome;
}

TEST(SyncBatchNorm, HasUnderAPlanTheBitsOfNone) {
  in_processes(2, [](World& world) {
    const auto expected = trained(world, 100);
    for (const Bytes share : {80, 60}) testing::expect_same(expected, trained(world, share));
  });
}

/// One has no rows, as of a last batch: the moments are those of the others.
TEST(SyncBatchNorm, AProcessWithoutRowsAddsNothing) {
  in_processes(2, [](World& world) {
    torch::manual_seed(1);
    const at::Tensor all = torch::randn({5, 3, 4, 4}), gradient = torch::randn({5, 3, 4, 4});
    const std::int64_t rows = world.all()->rank() == 0 ? 5 : 0;
    const at::Tensor x = all.narrow(0, 0, rows).clone().requires_grad_();
    const at::Tensor weight = torch::ones({3}).requires_grad_(), bias = torch::zeros({3}).requires_grad_();
    const auto found = ops::sync_batch_norm(x, weight, bias, 1e-5, tensor_group(world.all()));
    EXPECT_EQ(found.count.item<double>(), 5 * 16);
    EXPECT_TRUE(at::allclose(found.mean, all.mean({0, 2, 3}), 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(found.variance, all.var({0, 2, 3}, false), 1e-5, 1e-6));
    const auto gradients = torch::autograd::grad({found.values}, {x, weight, bias}, {gradient.narrow(0, 0, rows)});
    EXPECT_EQ(gradients[0].sizes(), x.sizes());
    EXPECT_TRUE(gradients[0].isfinite().all().item<bool>());
    EXPECT_TRUE(gradients[1].isfinite().all().item<bool>());
    EXPECT_EQ(gradients[1].abs().sum().item<double>() > 0, rows > 0);
  });
}

TEST(SyncBatchNorm, OfAProcessAloneIsLibTorchs) {
  class Alone final : public ops::TensorGroup {
   public:
    Alone() : TensorGroup(0, 1) {}
    at::Tensor sum(const at::Tensor& mine) override { return mine.clone(); }
    at::Tensor max(const at::Tensor& mine) override { return mine.clone(); }
    at::Tensor gather(const at::Tensor& mine, std::int64_t /*dimension*/) override { return mine.clone(); }
    at::Tensor sum_part(const at::Tensor& mine, std::int64_t /*dimension*/) override { return mine.clone(); }
    at::Tensor shift(const at::Tensor& mine) override { return mine.clone(); }
    at::Tensor exchange(const at::Tensor& mine, std::int64_t, std::int64_t) override { return mine.clone(); }
    at::Tensor gather_again(const at::Tensor& part, const at::Tensor&) override { return part.clone(); }
  };
  torch::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = torch::randn({6, 4, 5, 5}).to(type).requires_grad_();
    const at::Tensor weight = torch::randn({4}).requires_grad_(), bias = torch::randn({4}).requires_grad_();
    const at::Tensor gradient = torch::randn({6, 4, 5, 5}).to(type);
    const at::Tensor expected = at::batch_norm(x, weight, bias, {}, {}, true, 0.1, 1e-5, false);
    const auto wanted = torch::autograd::grad({expected}, {x, weight, bias}, {gradient});
    const auto found = ops::sync_batch_norm(x, weight, bias, 1e-5, std::make_shared<Alone>());
    const auto gradients = torch::autograd::grad({found.values}, {x, weight, bias}, {gradient});
    const double bound = type == at::kFloat ? 1e-5 : 1e-2;
    EXPECT_TRUE(at::allclose(found.values.to(at::kFloat), expected.to(at::kFloat), bound, bound)) << type;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(gradients[i].scalar_type(), wanted[i].scalar_type());
      const double most = wanted[i].to(at::kFloat).abs().max().item<double>();
      EXPECT_TRUE(at::allclose(gradients[i].to(at::kFloat), wanted[i].to(at::kFloat), bound, bound * most)) << type;
    }
    EXPECT_EQ(found.count.item<float>(), 6 * 25);
  }
}

TEST(SyncBatchNorm, RefusesModulesThatCannot) {
  torch::nn::Sequential other(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4));
  EXPECT_THAT(
      [&] { (void)models::synchronize_batch_norms(*other, nullptr); },
      ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr("batch norm: 1 is a torch::nn::BatchNorm2dImpl")));
}

}  // namespace
}  // namespace snug::parallel
