// Layers in parts, beside one process that has all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/models/bert.h"
#include "snug/models/vit.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/models_in_parts.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using models::LayerParts;
using models::ModelInParts;
using testing::all_models;
using testing::CausalLmImpl;
using testing::gpt;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::kEven;
using testing::kUneven;
using testing::loss_of;
using testing::Made;
using testing::Model;
using testing::Parts;
using testing::same_bits;
using testing::tokens_of;
using testing::with_packed;

/// What each process should have of the gradients of a whole model.
std::vector<at::Tensor> parts_of_gradients(World& world, const Made& made, CausalLmImpl& one, bool sequences) {
  const Model as_weights = made.make();
  {
    const torch::NoGradGuard no_grad;
    const auto from = one.parameters(), to = as_weights->parameters();
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i].grad().defined()) to[i].copy_(from[i].grad());
    }
  }
  (void)as_weights->divide(LayerParts{.group = tensor_group(world.all()),
                                      .between = sequences ? models::Between::Sequences : models::Between::Whole});
  return as_weights->parameters();
}

/// Sums over what is divided are added up in another order: by as many units in the last place as there are summands
/// of about the same size, in the worst case, and by their root where they are random.
void expect_close(const at::Tensor& expected, const at::Tensor& found, const std::string& what) {
  const double norm = expected.norm().item<double>();
  EXPECT_LE((expected - found).norm().item<double>(), 1e-5 * norm + 1e-9) << what;
}

void are_those_of_one(World& world, bool sequences) {
  for (const Made& made : with_packed(kUneven)) {
    const Model one = made.make();
    Parts mine(world.all(), made.make(), sequences ? models::Between::Sequences : models::Between::Whole);
    const at::Tensor batch = tokens_of(0);
    const at::Tensor expected = loss_of(*one, batch), loss = loss_of(*mine.model, batch);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-6) << made.name;
    const at::Tensor of_all = torch::stack({loss.detach(), -loss.detach()});
    world.all()->run(AllReduce{of_all, Reduce::Max});
    EXPECT_TRUE(same_bits(of_all[0], -of_all[1])) << made.name << ": all have the same loss, to the bit";
    expected.backward();
    loss.backward();
    const auto parts = parts_of_gradients(world, made, *one, sequences);
    const auto gradients = mine.take_gradients();
    const auto names = mine.model->named_parameters();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!names[i].value().requires_grad()) continue;
      ASSERT_TRUE(gradients[i].defined()) << made.name << " " << names[i].key();
      expect_close(parts[i], gradients[i], made.name + " " + names[i].key());
    }
    // Positions, norms, biases behind sums and adapters' inner sides are whole.
    const auto bytes = static_cast<double>(testing::bytes_of_weights(*mine.model)),
               whole = static_cast<double>(testing::bytes_of_weights(*one));
    EXPECT_LE(bytes, 1.2 * whole / world.all()->size()) << made.name;
  }
}

/// Layers of encoders, by a table, as those of any module.
template <class Make, class Loss>
void encoder_is_that_of_one(World& world, const Make& make, const Loss& loss_of) {
  auto one = make(), mine = make();
  const LayerParts parts{.group = tensor_group(world.all())};
  const ModelInParts found = models::divide_layers(*mine, models::encoder_layouts(), 4, parts);
  EXPECT_EQ(found.divided.size(), 2U * (4 * 2 + 2));  // weights and biases, but for biases behind sums
  const at::Tensor expected = loss_of(one), loss = loss_of(mine);
  EXPECT_NEAR(loss.template item<double>(), expected.template item<double>(), 2e-6);
  expected.backward();
  loss.backward();
  auto as_weights = make();
  {
    const torch::NoGradGuard no_grad;
    const auto from = one->parameters(), to = as_weights->parameters();
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (from[i].grad().defined()) to[i].copy_(from[i].grad());
    }
  }
  (void)models::divide_layers(*as_weights, models::encoder_layouts(), 4, parts);
  const auto wanted = as_weights->parameters();
  const auto names = mine->named_parameters();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (names[i].value().grad().defined()) expect_close(wanted[i], names[i].value().grad(), names[i].key());
  }
}

TEST(TensorParallel, EncodersAreThoseOfOneProcess) {
  in_processes(4, [](World& world) {
    encoder_is_that_of_one(
        world,
        [] {
          torch::manual_seed(4);
          models::BertOptions options;
          options.layers = 2;
          options.width = 64;
          options.inner_width = 128;
          options.heads = 4;
          options.vocabulary = kUneven;
          options.sequence = 32;
          models::BertClassifier model(options, 3);
          model->eval();
          return model;
        },
        [](models::BertClassifier& model) {
          const at::Tensor tokens = tokens_of(0).narrow(1, 0, 32);
          return model->loss({.tokens = tokens}, torch::arange(8) % 3);
        });
    encoder_is_that_of_one(
        world,
        [] {
          torch::manual_seed(5);
          models::VitOptions options;
          options.layers = 2;
          options.width = 64;
          options.inner_width = 128;
          options.heads = 4;
          options.image = 32;
          options.patch = 8;
          options.classes = 5;
          models::Vit model(options);
          model->eval();
          return model;
        },
        [](models::Vit& model) {
          torch::manual_seed(6);
          return model->loss(torch::rand({4, 3, 32, 32}), torch::arange(4));
        });
  });
}

/// A feed-forward part of torch::nn's layers, as the documentation has it, with whole sequences or parts of them.
TEST(TensorParallel, ModulesOfOnesOwnAreThoseOfOneProcess) {
  in_processes(2, [](World& world) {
    const ops::LayerGroup group = tensor_group(world.all());
    const std::int64_t rank = group->rank();
    torch::manual_seed(8);
    torch::nn::Linear up(16, 32), down(32, 16);
    const at::Tensor input = torch::randn({2, 6, 16});
    const auto run = [&](const at::Tensor& x, const auto& enter, const auto& leave) {
      return leave(torch::gelu(torch::linear(enter(x), up->weight, up->bias)));
    };
    at::Tensor whole = input.clone().requires_grad_();
    const at::Tensor expected = run(
        whole, [](const at::Tensor& x) { return x; },
        [&](const at::Tensor& y) { return torch::linear(y, down->weight, down->bias); });
    (expected * expected).sum().backward();
    const at::Tensor of_up = up->weight.grad().chunk(2, 0)[static_cast<std::size_t>(rank)].clone();
    const at::Tensor of_down = down->weight.grad().chunk(2, 1)[static_cast<std::size_t>(rank)].clone();
    models::keep_piecewise_part(up->weight, 0, 1, static_cast<int>(rank), 2);
    models::keep_piecewise_part(up->bias, 0, 1, static_cast<int>(rank), 2);
    models::keep_piecewise_part(down->weight, 1, 1, static_cast<int>(rank), 2);
    for (const bool sequences : {false, true}) {
      for (torch::nn::Linear& layer : std::vector<torch::nn::Linear>{up, down}) layer->zero_grad();
      at::Tensor mine = input.clone().requires_grad_();
      const at::Tensor begins = sequences ? ops::part_of(mine, 1, group) : mine;
      const at::Tensor ends = run(
          begins,
          [&](const at::Tensor& x) {
            return sequences ? ops::enter_parts_from(x, 1, group) : ops::enter_parts(x, group);
          },
          [&](const at::Tensor& y) {
            const at::Tensor product = torch::linear(y, down->weight);
            return (sequences ? ops::leave_parts_to(product, 1, group) : ops::leave_parts(product, group)) + down->bias;
          });
      const at::Tensor found = sequences ? ops::all_parts(ends, 1, group) : ends;
      expect_close(expected.detach(), found.detach(), "outputs");
      (found * found).sum().backward();
      expect_close(whole.grad(), mine.grad(), "gradients of inputs");
      expect_close(of_up, up->weight.grad(), "columns");
      expect_close(of_down, down->weight.grad(), "rows");
    }
  });
}

TEST(TensorParallel, RefusesWhatCannotBeDivided) {
  in_processes(2, [](World& world) {
    const LayerParts parts{.group = tensor_group(world.all())};
    const auto said = [&](CausalLmImpl& model) -> std::string {
      try {
        (void)model.divide(parts);
      } catch (const UsageError& error) {
        return error.what();
      }
      return "nothing";
    };
    models::Gpt odd(models::GptOptions{.blocks = 1, .width = 48, .heads = 3, .sequence = 8, .vocabulary = 8});
    EXPECT_THAT(said(*odd), HasSubstr("2 processes cannot have as many of 3 heads each"));
    EXPECT_EQ(odd->parameters().front().size(0), 8) << "it is as it was";
    const Model twice = gpt(kEven);
    EXPECT_EQ(said(*twice), "nothing");
    EXPECT_THAT(said(*twice), HasSubstr("in parts already"));
    models::Gpt none(models::GptOptions{.blocks = 1, .width = 8, .heads = 2, .sequence = 8, .vocabulary = 8});
    EXPECT_THROW((void)models::divide_layers(*none, {{"no_such_layer", models::Rows{}}}, 2, parts), UsageError);
    at::Tensor padded = tokens_of(0);
    padded.select(0, 0).select(0, 3).fill_(-100);  // of targets alone it says that they do not count
    EXPECT_THROW((void)twice->loss(padded, tokens_of(0)), UsageError);
    EXPECT_THROW((void)ops::part_of(torch::ones({2, 7}), 1, parts.group), UsageError);
    const at::Tensor x = torch::ones({2, 6}).requires_grad_();
    for (const at::Tensor& y : {ops::enter_parts(x, parts.group), ops::leave_parts_to(x, 1, parts.group),
                                ops::exchange_parts(x, 1, 0, parts.group)}) {
      EXPECT_ANY_THROW((void)torch::autograd::grad({(y * y).sum()}, {x}, {}, true, /*create_graph=*/true));
    }
    const Model sequences = gpt(kEven);
    (void)sequences->divide({.group = parts.group, .between = models::Between::Sequences});
    EXPECT_THROW((void)sequences->loss(tokens_of(0).narrow(1, 0, 31), tokens_of(0).narrow(1, 0, 31)), UsageError);
  });
}

TEST(TensorParallel, RefusesWhatIsNotInTheVocabularyAndLateAdapters) {
  in_processes(2, [](World& world) {
    const Model model = gpt(kEven);
    (void)model->divide({.group = tensor_group(world.all())});
    const auto said = [](const auto& does) -> std::string {
      try {
        does();
      } catch (const UsageError& error) {
        return error.what();
      }
      return "nothing";
    };
    const at::Tensor batch = tokens_of(0), beyond = torch::full_like(batch, kEven), none = torch::full_like(batch, -3);
    EXPECT_THAT(said([&] { (void)model->loss(beyond, batch); }), HasSubstr("token 96 is not in a vocabulary of 96"));
    EXPECT_THAT(said([&] { (void)model->loss(batch, none); }), HasSubstr("target -3 is not in a vocabulary of 96"));
    EXPECT_THAT(said([&] { (void)models::add_lora(*model, {.targets = {"up"}}); }), HasSubstr("the layer is in parts"));
    EXPECT_THAT(said([&] {
                  const Model other = gpt(kEven);
                  (void)models::divide_layers(*other, {{"up", models::Rows{}}, {"0.up", models::Columns{}}}, 4,
                                              {.group = tensor_group(world.all())});
                }),
                HasSubstr("two names of layers are those of blocks.0.up"));
  });
}

/// Outside of parts all draw the same numbers, inside each its own; how many does not matter outside.
TEST(TensorParallel, RandomNumbersOfPartsAreEachProcessesOwn) {
  std::vector<at::Tensor> inside, outside;
  for (const int rank : {0, 1, 1}) {
    torch::manual_seed(9);
    outside.push_back(torch::rand({4}));
    {
      const models::RandomOfParts random(rank, c10::kCPU);
      inside.push_back(torch::rand({4}));
      if (rank == 1) (void)torch::rand({100});
    }
    {
      const models::RandomOfParts random(rank, c10::kCPU);
      EXPECT_FALSE(same_bits(torch::rand({4}), inside.back())) << "each time other ones";
    }
    outside.back() = torch::cat({outside.back(), torch::rand({4})});
  }
  EXPECT_TRUE(same_bits(outside[0], outside[1]));
  EXPECT_FALSE(same_bits(inside[0], inside[1]));
  EXPECT_TRUE(same_bits(inside[1], inside[2]));
}

/// Generation has the whole vocabulary's logits.
TEST(TensorParallel, LogitsAreThoseOfAllTokens) {
  in_processes(2, [](World& world) {
    for (const Made& made : all_models(kUneven)) {
      const torch::NoGradGuard no_grad;
      const Model one = made.make();
      const Parts mine(world.all(), made.make(), models::Between::Whole);
      const at::Tensor expected = one->forward(tokens_of(0)), found = mine.model->forward(tokens_of(0));
      EXPECT_EQ(found.sizes(), expected.sizes());
      EXPECT_TRUE(torch::allclose(expected, found, 1e-4, 1e-5)) << made.name;
    }
  });
}

TEST(TensorParallel, LossesAndGradientsAreThoseOfOneProcessInTwo) {
  in_processes(2, [](World& world) { are_those_of_one(world, false); });
}
TEST(TensorParallel, LossesAndGradientsAreThoseOfOneProcessInFour) {
  in_processes(4, [](World& world) { are_those_of_one(world, false); });
}
TEST(TensorParallel, SequencesInPartsAreThoseOfOneProcessInTwo) {
  in_processes(2, [](World& world) { are_those_of_one(world, true); });
}
TEST(TensorParallel, SequencesInPartsAreThoseOfOneProcessInFour) {
  in_processes(4, [](World& world) { are_those_of_one(world, true); });
}

}  // namespace
}  // namespace snug::parallel
