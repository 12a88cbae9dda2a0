// Sequences in parts, beside one process that has all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/parallel/group_agreement.h"
#include "snug/replay/fit.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/models_in_parts.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using models::ContextMethod;
using ::testing::HasSubstr;
using testing::in_processes;
using testing::kEven;
using testing::kSequence;
using testing::Made;
using testing::Model;
using testing::same_bits;

/// A model of which this process has a part of every sequence.
struct OfSequences {
  OfSequences(World& world, const Made& made, ContextMethod method_given = ContextMethod::Heads)
      : rank(world.all()->rank()),
        size(world.all()->size()),
        model(made.make()),
        method(method_given),
        found(model->divide_sequences(tensor_group(world.all()), method_given)),
        together(found.summands, world.all(), {.combine = DataParallelOptions::Combine::Sum}) {}
  [[nodiscard]] at::Tensor part(const at::Tensor& whole) const {
    return models::take_pieces(whole, 1, models::pieces_of(method, whole.size(1), rank, size));
  }
  at::Tensor loss(const at::Tensor& batch) { return model->loss(part(batch), part(testing::targets_of(batch))); }
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : model->parameters()) {
      gradients.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
      at::Tensor(p).mutable_grad() = at::Tensor();
    }
    return gradients;
  }
  int rank, size;
  Model model;
  ContextMethod method;
  models::ModelInParts found;
  DataParallel together;
};

/// Of 3 heads, which 2 processes cannot divide.
std::vector<Made> also_of_three_heads() {
  std::vector<Made> all = testing::all_models(kEven);
  all.push_back(
      {"gpt of 3 heads", [] {
         torch::manual_seed(1);
         return Model(models::Gpt(models::GptOptions{
                                      .blocks = 2, .width = 48, .heads = 3, .sequence = kSequence, .vocabulary = kEven})
                          .ptr());
       }});
  return all;
}

void is_that_of_one_process(World& world, ContextMethod method) {
  for (const Made& made : method == ContextMethod::Ring ? also_of_three_heads() : testing::all_models(kEven)) {
    const Model one = made.make();
    OfSequences mine(world, made, method);
    const at::Tensor batch = testing::tokens_of(0);
    const at::Tensor expected = testing::loss_of(*one, batch), loss = mine.loss(batch);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-6) << made.name;
    expected.backward();
    loss.backward();
    const auto gradients = mine.take_gradients();
    const auto names = one->named_parameters();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor& wanted = names[i].value().grad();
      EXPECT_EQ(gradients[i].defined(), wanted.defined());
      if (!wanted.defined()) continue;
      EXPECT_LE((gradients[i] - wanted).norm().item<double>(), 1e-5 * wanted.norm().item<double>() + 1e-9)
          << made.name << " " << names[i].key();
    }
  }
}

TEST(ContextParallel, LossesAndGradientsAreThoseOfOneProcessInTwo) {
  in_processes(2, [](World& world) { is_that_of_one_process(world, ContextMethod::Heads); });
}
TEST(ContextParallel, LossesAndGradientsAreThoseOfOneProcessInFour) {
  in_processes(4, [](World& world) { is_that_of_one_process(world, ContextMethod::Heads); });
}
TEST(ContextParallel, LossesAndGradientsOfARingAreThoseOfOneProcessInTwo) {
  in_processes(2, [](World& world) { is_that_of_one_process(world, ContextMethod::Ring); });
}
TEST(ContextParallel, LossesAndGradientsOfARingAreThoseOfOneProcessInFour) {
  in_processes(4, [](World& world) { is_that_of_one_process(world, ContextMethod::Ring); });
}

/// Frequencies that follow from the length of the whole sequence are the same in all.
TEST(ContextParallel, PositionsAreThoseOfTheWholeSequence) {
  in_processes(2, [](World& world) {
    const Made made{"llama, stretched", [] {
                      torch::manual_seed(3);
                      models::LlamaOptions options;
                      options.layers = 2;
                      options.width = 64;
                      options.inner_width = 160;
                      options.heads = options.key_heads = 4;
                      options.rotary.width = 16;
                      options.rotary.scaling = models::DynamicScaling{.factor = 4, .trained_length = kSequence / 4};
                      options.vocabulary = kEven;
                      options.sequence = kSequence;
                      return Model(models::Llama(options).ptr());
                    }};
    const Model one = made.make();
    const at::Tensor batch = testing::tokens_of(0);
    for (const ContextMethod method : {ContextMethod::Heads, ContextMethod::Ring}) {
      OfSequences mine(world, made, method);
      EXPECT_NEAR(mine.loss(batch).item<double>(), testing::loss_of(*one, batch).item<double>(), 2e-6);
    }
  });
}

/// A process whose part has no target takes part all the same.
TEST(ContextParallel, PartsMayHaveNoTargets) {
  in_processes(2, [](World& world) {
    const Made made{"gpt", [] { return testing::gpt(kEven); }};
    const Model one = made.make();
    OfSequences mine(world, made);
    const at::Tensor batch = testing::tokens_of(0);
    const at::Tensor targets = testing::targets_of(batch);
    targets.narrow(1, 0, kSequence / 2).fill_(-100);
    const at::Tensor expected = one->loss(batch, targets);
    const at::Tensor loss = mine.model->loss(mine.part(batch), mine.part(targets));
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-6);
    expected.backward();
    loss.backward();
    const auto gradients = mine.take_gradients();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor wanted = one->parameters()[i].grad();
      EXPECT_LE((gradients[i] - wanted).norm().item<double>(), 1e-5 * wanted.norm().item<double>() + 1e-9) << i;
    }
  });
}

void is_the_same_under_a_budget(ContextMethod method) {
  in_processes(2, [method](World& world) {
    memory::DeviceMemory& memory = testing::cpu();
    for (const Made& made : testing::all_models(kEven)) {
      std::vector<at::Tensor> expected;
      {
        OfSequences plain(world, made, method);
        plain.loss(testing::tokens_of(1)).backward();
        expected = plain.take_gradients();
      }
      OfSequences mine(world, made, method);
      const auto step = [&](const at::Tensor& batch) { return mine.loss(batch); };
      const auto fitted = [&](Bytes budget) {
        return fit(step, testing::tokens_of(0), {.budget = budget, .agreement = agreement_of(world.all())});
      };
      const at::Tensor budget = torch::zeros({}, at::kLong);
      {
        const Session all = fitted(1_GiB);
        const Bytes before = memory.stats().allocated;
        budget.fill_(before + (all.plan().unplanned_peak - before) * 8 / 10);
      }
      world.all()->run(AllReduce{budget, Reduce::Max});
      Session session = fitted(budget.item<std::int64_t>());
      for (int i = 0; i < 2; ++i) {
        memory.reset_peak();
        session.backward(step, testing::tokens_of(1));
        EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
        EXPECT_GT(session.last_step().replayed_ops, 0) << made.name;
        EXPECT_LE(memory.stats().allocated_peak, budget.item<std::int64_t>()) << made.name;
        const auto found = mine.take_gradients();
        for (std::size_t k = 0; k < found.size(); ++k) EXPECT_TRUE(same_bits(found[k], expected[k])) << made.name;
      }
    }
  });
}

TEST(ContextParallel, UnderABudgetTheBitsAreTheSame) { is_the_same_under_a_budget(ContextMethod::Heads); }
TEST(ContextParallel, UnderABudgetTheBitsOfARingAreTheSame) { is_the_same_under_a_budget(ContextMethod::Ring); }

/// Of whole sequences, in one process while the other does something else.
TEST(ContextParallel, GeneratesByItself) {
  in_processes(2, [](World& world) {
    const Model whole = testing::llama(kEven), model = testing::llama(kEven);
    (void)model->divide_sequences(tensor_group(world.all()));
    if (world.all()->rank() == 1) return;
    const torch::NoGradGuard no_grad;
    models::KeyValueCache expected, cache;
    for (const std::int64_t first : {0, 20}) {  // a prompt, and what comes behind it
      const at::Tensor tokens = testing::tokens_of(0).narrow(1, first, 20);
      EXPECT_TRUE(same_bits(model->forward_last(tokens, &cache), whole->forward_last(tokens, &expected)));
    }
  });
}

TEST(ContextParallel, RefusesWhatNeedsWholeSequences) {
  in_processes(2, [](World& world) {
    const auto group = tensor_group(world.all());
    const auto said = [](const auto& does) -> std::string {
      try {
        does();
      } catch (const UsageError& error) {
        return error.what();
      }
      return "nothing";
    };
    const Model model = testing::llama(kEven);
    (void)model->divide_sequences(group);
    const at::Tensor half = testing::tokens_of(0).narrow(1, 0, kSequence / 2);
    EXPECT_THAT(said([&] { (void)model->loss(testing::tokens_of(0), testing::tokens_of(0)); }), HasSubstr("is longer"));
    EXPECT_THAT(said([&] { (void)model->forward_last(half); }), HasSubstr("in one process alone"));
    EXPECT_THAT(said([&] { (void)model->divide({.group = group}); }), HasSubstr("in parts already"));
    models::Gpt odd(models::GptOptions{.blocks = 1, .width = 48, .heads = 3, .sequence = 8, .vocabulary = 8});
    EXPECT_THAT(said([&] { (void)odd->divide_sequences(group); }), HasSubstr("3 heads"));
    const Model dropped = testing::gpt2(kEven, 0.1);
    (void)dropped->divide_sequences(group, ContextMethod::Ring);
    EXPECT_THAT(said([&] { (void)dropped->loss(half, half); }), HasSubstr("a ring has no dropout of attention"));
    EXPECT_THAT(said([] { (void)models::pieces_of(ContextMethod::Ring, 6, 0, 2); }), HasSubstr("in 4 pieces"));
  });
}

}  // namespace
}  // namespace snug::parallel
