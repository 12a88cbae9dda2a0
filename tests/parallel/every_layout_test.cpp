// Encoders and residual nets in every layout that they can have: ten steps beside one process, and under plans.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/models/bert.h"
#include "snug/models/layer_parts.h"
#include "snug/models/resnet.h"
#include "snug/optim/adamw.h"
#include "snug/optim/sgd.h"
#include "snug/parallel/divide.h"
#include "snug/parallel/group_agreement.h"
#include "snug/parallel/mesh.h"
#include "snug/parallel/tensor_group.h"
#include "snug/replay/fit.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using testing::in_processes;
using testing::same_bits;

constexpr int kSteps = 10;
constexpr std::int64_t kRows = 12;  // of each process

/// What people train each with; AdamW's steps are as large where gradients are nothing but rounding.
std::unique_ptr<optim::Optimizer> optimizer_for(bool has_batch_norms, const optim::Parameters& parameters) {
  if (has_batch_norms) return std::make_unique<optim::Sgd>(parameters, optim::SgdOptions{});
  return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{});
}
constexpr double rate_for(bool has_batch_norms) { return has_batch_norms ? 1e-2 : 1e-3; }

struct Rows {
  at::Tensor inputs, labels;
};

/// A model and its data.
struct Example {
  std::string name;
  std::function<std::shared_ptr<torch::nn::Module>(double dropout)> make;
  std::function<Rows(int rank, int step)> rows;
  std::function<at::Tensor(torch::nn::Module& model, const Rows& rows)> loss;
  bool has_batch_norms = false;
};

Example bert() {
  return {.name = "bert",
          .make =
              [](double dropout) {
                torch::manual_seed(4);
                models::BertOptions options;
                options.layers = 3;
                options.width = 64;
                options.inner_width = 256;
                options.heads = 4;
                options.vocabulary = 96;
                options.sequence = 32;
                options.dropout = dropout;
                options.attention_dropout = dropout;
                return models::BertClassifier(options, 3).ptr();
              },
          .rows =
              [](int rank, int step) {
                torch::manual_seed(100 * rank + step);
                return Rows{torch::randint(1, 96, {kRows, 32}), torch::randint(3, {kRows})};
              },
          .loss =
              [](torch::nn::Module& model, const Rows& rows) {
                return dynamic_cast<models::BertClassifierImpl&>(model).loss({.tokens = rows.inputs}, rows.labels);
              }};
}

/// In fp64, where it is compared with sums in another order: batch norms of few rows let rounding grow.
Example resnet(at::ScalarType type = at::kFloat) {
  return {
      .name = "resnet",
      .make =
          [type](double /*dropout*/) {
            torch::manual_seed(3);
            models::Resnet model(models::ResnetOptions{
                .depths = {3, 2, 1, 1}, .stem = models::SmallImageStem{}, .width = 16, .classes = 5});
            model->to(type);
            return model.ptr();
          },
      .rows =
          [type](int rank, int step) {
            torch::manual_seed(100 * rank + step);
            return Rows{torch::randn({kRows, 3, 16, 16}).to(type), torch::randint(5, {kRows})};
          },
      .loss = [](torch::nn::Module& model,
                 const Rows& rows) { return dynamic_cast<models::ResnetImpl&>(model).loss(rows.inputs, rows.labels); },
      .has_batch_norms = true};
}

/// What processes have a part of.
enum class Layout : std::uint8_t { Replicas, Optimizer, Gradients, Weights, WeightsInPairs, Layers };
const char* name_of(Layout layout) {
  constexpr std::array kNames = {"replicas", "optimizer", "gradients", "weights", "weights in pairs", "layers"};
  return kNames.at(static_cast<std::size_t>(layout));
}

struct Outcome {
  std::vector<double> losses;         ///< of each step, of all rows
  std::vector<at::Tensor> gradients;  ///< of the last step, as this process has them
  std::vector<at::Tensor> weights, buffers;
  std::int64_t replayed = 0;
};

/// One process of a layout.
class Member {
 public:
  Member(World& world, const Example& example, Layout layout, double dropout)
      : example_(example), layout_(layout), world_(world), model_(example.make(dropout)) {
    const int parts = layout == Layout::Layers ? 2 : 1, pairs = layout == Layout::WeightsInPairs ? 2 : 1;
    mesh_.emplace(
        std::shared_ptr<World>(&world, [](auto*) {}),
        std::vector<Mesh::Axis>{{"copy", pairs}, {"data", world.all()->size() / parts / pairs}, {"tensor", parts}});
    std::vector<at::Tensor> summands;
    if (example.has_batch_norms) (void)models::synchronize_batch_norms(*model_, tensor_group(world.all()));
    if (layout == Layout::Layers) {
      summands = models::divide_layers(*model_, models::encoder_layouts(), 4,
                                       {.group = tensor_group(mesh_->group({"tensor"}))})
                     .summands;
      options_.leaves = DataParallelOptions::Leaves::Gradients;
    }
    if (layout == Layout::Replicas) options_.leaves = DataParallelOptions::Leaves::Gradients;
    if (layout == Layout::Weights || layout == Layout::WeightsInPairs) {
      streamed_ = std::make_shared<StreamedTensors>();
      options_.divided = divide(model_->parameters(), world, mesh_->group({"data"}), 4_KiB,
                                [&](const at::Tensor& parameter, std::unique_ptr<memory::ContentsRoom> room) {
                                  streamed_->add_with_room(parameter, std::move(room));
                                });
      streamed_->set_cost(measured_gather_cost(world, mesh_->group({"data"})));
    }
    if (!summands.empty()) summands_.emplace(summands, mesh_->group({"data", "tensor"}), options_);
    together_.emplace(models::others_than(summands, *model_), mesh_->group({"data"}), options_);
    make_optimizer();
    // Processes with parts of the same layers draw the same numbers between them.
    torch::manual_seed(1000 + replica());
  }

  Outcome run(std::optional<int> percent) {
    const auto step = [this](const Rows& rows) { return example_.loss(*model_, rows) * share(); };
    std::optional<Session> session;
    if (percent) session.emplace(fitted(step, *percent));
    Outcome found;
    for (int i = 0; i < kSteps; ++i) {
      const Rows rows = example_.rows(replica(), i);
      torch::manual_seed(10'000 * (1 + replica()) + i);  // whatever was drawn for a plan
      at::Tensor loss;
      {
        // Stage 1 hands in what a micro-batch before it has left, too.
        std::optional<DataParallel::Accumulating> alone;
        if (layout_ == Layout::Optimizer) alone.emplace(*together_);
        loss = session ? session->backward(step, rows) : step(rows);
        if (!session) loss.backward();
      }
      if (layout_ == Layout::Optimizer) together_->hand_in();
      if (session) {
        EXPECT_TRUE(session->last_step().followed_plan) << session->last_step().divergence;
        found.replayed += session->last_step().replayed_ops;
      }
      if (over_copies_) over_copies_->hand_in();
      found.losses.push_back(of_all(loss));
      if (i + 1 == kSteps) {
        for (const at::Tensor& one : optimizer_->parameters())
          found.gradients.push_back(one.grad().defined() ? one.grad().clone() : at::Tensor());
      }
      optimizer_->step(rate_for(example_.has_batch_norms));
      optimizer_->zero_grad();
      together_->gather();
      if (streamed_) streamed_->forget_copies();
    }
    session.reset();
    if (streamed_) streamed_->bring_back();
    for (const at::Tensor& one : model_->parameters()) found.weights.push_back(one.detach().clone());
    for (const at::Tensor& one : model_->buffers()) found.buffers.push_back(one.clone());
    world_.all()->run(Barrier{});
    return found;
  }

 private:
  [[nodiscard]] int replica() const { return world_.all()->rank() / mesh_->size("tensor"); }
  [[nodiscard]] double share() const { return 1.0 / (world_.all()->size() / mesh_->size("tensor")); }

  void make_optimizer() {
    optim::Parameters mine{};
    const bool in_shards = options_.leaves == DataParallelOptions::Leaves::Shards;
    if (in_shards) {
      for (const Shard& shard : together_->shards()) {
        mine.tensors.push_back(shard.tensor);
        mine.parts.push_back({shard.of, shard.index, shard.first});
      }
    } else {
      mine = model_->parameters();
    }
    if (mesh_->size("copy") > 1) {
      DataParallelOptions whole = options_;
      whole.leaves = DataParallelOptions::Leaves::Gradients;
      whole.divided.clear();
      over_copies_.emplace(mine.tensors, mesh_->group({"copy"}), whole);
    }
    optimizer_ = optimizer_for(example_.has_batch_norms, mine);
  }

  template <class Step>
  Session fitted(const Step& step, int percent) {
    replay::Rehearsal update([this] {
      if (over_copies_) over_copies_->hand_in(Reduction::Purpose::Trial);
      optimizer_->rehearse();
      together_->gather(Reduction::Purpose::Trial);
    });
    update.parameters = optimizer_->parameters();
    update.writes = replay::Rehearsal::Writes::Nothing;
    const auto within = [&](Bytes budget) {
      // The first process's rows have their sizes in all.
      return fit(step, example_.rows(replica(), 0),
                 {.budget = budget, .streamed = streamed_, .update = update, .agreement = agreement_of(world_.all())});
    };
    const at::Tensor budget = torch::zeros({}, at::kLong);
    {
      const Session all = within(1_GiB);
      budget.fill_(all.plan().unplanned_peak * percent / 100);
    }
    world_.all()->run(AllReduce{budget, Reduce::Max});
    return within(budget.item<std::int64_t>());
  }

  double of_all(const at::Tensor& loss) {
    const at::Tensor sum = loss.detach().to(at::kDouble).clone();
    if (mesh_->size("tensor") > 1 && mesh_->at("tensor") > 0) sum.zero_();
    world_.all()->run(AllReduce{sum});
    return sum.item<double>();
  }

  const Example& example_;
  Layout layout_;
  World& world_;
  std::shared_ptr<torch::nn::Module> model_;
  std::optional<Mesh> mesh_;
  DataParallelOptions options_{
      .combine = DataParallelOptions::Combine::Sum, .leaves = DataParallelOptions::Leaves::Shards, .bucket = 64_KiB};
  std::shared_ptr<StreamedTensors> streamed_;
  std::optional<DataParallel> summands_, together_, over_copies_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

/// One process that has all rows: in micro-batches, in the order of the processes, or at once where norms are of all.
/// `divide`: what its weights are compared in, if not whole.
Outcome of_one_process(const Example& example, int replicas,
                       const std::function<void(torch::nn::Module&)>& divide = {}) {
  const auto model = example.make(0);
  const auto optimizer = optimizer_for(example.has_batch_norms, model->parameters());
  Outcome found;
  for (int i = 0; i < kSteps; ++i) {
    double sum = 0;
    std::vector<at::Tensor> inputs, labels;
    for (int rank = 0; rank < replicas; ++rank) {
      const Rows rows = example.rows(rank, i);
      inputs.push_back(rows.inputs), labels.push_back(rows.labels);
      if (example.has_batch_norms) continue;
      const at::Tensor loss = example.loss(*model, rows) * (1.0 / replicas);
      loss.backward();
      sum += loss.item<double>();
    }
    if (example.has_batch_norms) {
      const at::Tensor loss = example.loss(*model, {at::cat(inputs), at::cat(labels)});
      loss.backward();
      sum = loss.item<double>();
    }
    found.losses.push_back(sum);
    optimizer->step(rate_for(example.has_batch_norms));
    optimizer->zero_grad();
  }
  if (divide) divide(*model);
  for (const at::Tensor& one : model->parameters()) found.weights.push_back(one.detach());
  for (const at::Tensor& one : model->buffers()) found.buffers.push_back(one);
  return found;
}

void have_the_same_bits(const Outcome& one, const Outcome& other, const std::string& what) {
  EXPECT_EQ(one.losses, other.losses) << what;
  const auto same = [&](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const char* which) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << what << ": " << which << " " << i;
  };
  same(one.gradients, other.gradients, "gradient");
  same(one.weights, other.weights, "weight");
  same(one.buffers, other.buffers, "buffer");
}

/// Sums in another order; `bound`: of the difference of weights, by how large they are. Losses are in fp32.
void are_close(const Outcome& one, const Outcome& other, double bound, const std::string& what) {
  for (std::size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(one.losses[i], other.losses[i], std::max(bound, 1e-6) * one.losses[i]) << what << ", step " << i;
  double difference = 0, all = 0;
  for (std::size_t i = 0; i < one.weights.size(); ++i) {
    difference += (one.weights[i] - other.weights[i]).square().sum().item<double>();
    all += one.weights[i].square().sum().item<double>();
  }
  EXPECT_LE(std::sqrt(difference / all), bound) << what;
}

void is_that_of_one_process(World& world, const Outcome& plain, const Example& example, Layout layout,
                            const std::string& what) {
  if (example.has_batch_norms) {
    const Example exact = resnet(at::kDouble);
    return are_close(Member(world, exact, layout, 0).run({}), of_one_process(exact, world.all()->size()), 1e-9, what);
  }
  if (layout == Layout::Layers) {
    Mesh mesh(std::shared_ptr<World>(&world, [](auto*) {}), {{"data", world.all()->size() / 2}, {"tensor", 2}});
    const auto in_parts = [&](torch::nn::Module& model) {
      (void)models::divide_layers(model, models::encoder_layouts(), 4, {.group = tensor_group(mesh.group({"tensor"}))});
    };
    return are_close(plain, of_one_process(example, world.all()->size() / 2, in_parts), 1e-4, what);
  }
  const Outcome one = of_one_process(example, world.all()->size());
  if (layout == Layout::WeightsInPairs) {
    are_close(plain, one, 1e-4, what);
  } else {
    for (std::size_t i = 0; i < one.weights.size(); ++i)
      EXPECT_TRUE(same_bits(plain.weights[i], one.weights[i])) << what << " " << i;
  }
}

void holds_in(World& world, const Example& example, Layout layout) {
  const std::string what = fmt::format("{} of {}, {}", example.name, world.all()->size(), name_of(layout));
  const Outcome plain = Member(world, example, layout, 0).run({});
  is_that_of_one_process(world, plain, example, layout, what);
  // With dropout, which one process has not: under a plan.
  for (const double dropout : {0.0, 0.1}) {
    if (dropout > 0 && example.has_batch_norms) continue;
    const Outcome free = dropout == 0 ? plain : Member(world, example, layout, dropout).run({});
    const Outcome planned = Member(world, example, layout, dropout).run(90);
    EXPECT_GT(planned.replayed, 0) << what;
    have_the_same_bits(free, planned, what + fmt::format(", dropout {}", dropout));
    EXPECT_EQ(free.losses == plain.losses, dropout == 0) << what;
  }
}

/// Some of them; all there are with make test-long.
TEST(EveryLayout, HasTheBitsOfOneProcessAndUnderAPlan) {
  in_processes(2, [](World& world) {
    holds_in(world, bert(), Layout::Weights);
    holds_in(world, resnet(), Layout::Gradients);
  });
}

TEST(EveryLayout, AndAllOfThemDo) {
  for (const int size : {2, 4}) {
    for (const Layout layout : {Layout::Replicas, Layout::Optimizer, Layout::Gradients, Layout::Weights,
                                Layout::WeightsInPairs, Layout::Layers}) {
      if (layout == Layout::WeightsInPairs && size == 2) continue;
      in_processes(
          size,
          [layout](World& world) {
            holds_in(world, bert(), layout);
            if (layout != Layout::Layers) holds_in(world, resnet(), layout);
          },
          240);
    }
  }
}

}  // namespace
}  // namespace snug::parallel
