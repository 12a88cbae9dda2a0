// Layers in parts under a budget: collectives that a plan has all processes do again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/models/autocast.h"
#include "snug/parallel/group_agreement.h"
#include "snug/parallel/mesh.h"
#include "snug/record/recording_key.h"
#include "snug/replay/agreed_recording.h"
#include "snug/replay/fit.h"
#include "snug/replay/planned_step.h"
#include "tests/equivalence/bitwise.h"
#include "tests/parallel/models_in_parts.h"
#include "tests/parallel/processes.h"

namespace snug::parallel {
namespace {

using testing::adapted_llama;
using testing::all_models;
using testing::gpt2;
using testing::in_processes;
using testing::kEven;
using testing::kUneven;
using testing::llama;
using testing::loss_of;
using testing::Made;
using testing::Parts;
using testing::same_bits;
using testing::tokens_of;

constexpr const char* kModules = "recompute_modules(self_attn,mlp)";

struct Terms {
  models::Between between = models::Between::Whole;
  Bytes share = 60;  ///< of what the step takes beside what is there before, in percent
  std::string strategy = "optimal";
  Bytes crowd = 0;        ///< the second process has so much more in its steps than there is room for, unplanned
  bool autocast = false;  ///< to bf16
};

at::Tensor computed(models::CausalLmImpl& model, const at::Tensor& batch, const Terms& terms) {
  const models::AutocastScope autocast(terms.autocast ? std::optional(at::kBFloat16) : std::nullopt, c10::kCPU);
  return loss_of(model, batch);
}

std::int64_t calls_of(const ProcessGroup& group) {
  std::int64_t calls = 0;
  for (const ProcessGroup::Count& count : group.counts()) calls += count.calls;
  return calls;
}

using Backward = std::function<at::Tensor(const at::Tensor& batch)>;

/// The gradients of a step, and its loss.
std::vector<at::Tensor> outcome_of(Parts& parts, int step, const Backward& backward) {
  const at::Tensor batch = tokens_of(step);
  torch::manual_seed(7 + step);  // the same in all
  const at::Tensor loss = backward(batch).detach();
  auto gradients = parts.take_gradients();
  gradients.push_back(loss);
  return gradients;
}

constexpr int kSteps = 3;

struct Plain {
  std::vector<std::vector<at::Tensor>> outcomes;  // by step
  std::int64_t calls = 0;                         // of collectives, in one
};

Plain without_a_plan(const std::shared_ptr<ProcessGroup>& group, const Made& made, const Terms& terms) {
  Plain plain;
  Parts parts(group, made.make(), terms.between);
  const std::int64_t before = calls_of(*group);
  for (int i = 0; i < kSteps; ++i) {
    plain.outcomes.push_back(outcome_of(parts, i, [&](const at::Tensor& batch) {
      const at::Tensor loss = computed(*parts.model, batch, terms);
      loss.backward();
      return loss;
    }));
  }
  plain.calls = (calls_of(*group) - before) / kSteps;
  return plain;
}

/// Under a plan the gradients have the bits that they have without, and all do the same collectives. Returns how many
/// were done again in a step.
std::int64_t within_a_budget_in_parts(World& world, const Made& made, const Terms& terms) {
  memory::DeviceMemory& memory = testing::cpu();
  std::vector<int> ranks;
  for (int rank = 0; rank < world.all()->size(); ++rank) ranks.push_back(rank);
  const std::shared_ptr<ProcessGroup> group = world.group(ranks);  // beside that of all, in which sessions agree
  const Plain plain = without_a_plan(group, made, terms);
  Parts planned(group, made.make(), terms.between);
  const auto step = [&](const at::Tensor& batch) { return computed(*planned.model, batch, terms); };
  const auto fitted = [&](Bytes limit, const std::string& strategy) {
    return fit(step, tokens_of(0), {.budget = limit, .strategy = strategy, .agreement = agreement_of(world.all())});
  };
  const at::Tensor budget = torch::zeros({}, at::kLong);
  {
    const Session all = fitted(1_GiB, terms.strategy);
    const Bytes before = memory.stats().allocated;
    budget.fill_(before + (all.plan().unplanned_peak - before) * terms.share / 100);
  }
  world.all()->run(AllReduce{budget, Reduce::Max});
  Session session = fitted(budget.item<std::int64_t>(), terms.strategy);
  std::int64_t again = 0;
  const auto step_beside = [&](const at::Tensor& batch) {
    const at::Tensor loss = step(batch);
    const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);
    const Bytes room = budget.item<std::int64_t>() - memory.stats().allocated;
    if (world.all()->rank() == 1 && terms.crowd > 0) (void)torch::empty({room + terms.crowd}, at::kByte);
    return loss;
  };
  for (int i = 0; i < kSteps; ++i) {
    const std::int64_t before = calls_of(*group);
    memory.reset_peak();
    const auto found =
        outcome_of(planned, i, [&](const at::Tensor& batch) { return session.backward(step_beside, batch); });
    again += calls_of(*group) - before - plain.calls;
    EXPECT_TRUE(session.last_step().followed_plan) << made.name << ": " << session.last_step().divergence;
    EXPECT_GT(session.last_step().replayed_ops, 0) << made.name;
    if (terms.crowd > 0 && world.all()->rank() == 1) {
      EXPECT_GT(session.last_step().evictions, 0) << made.name;
    } else if (terms.strategy != "eviction") {
      EXPECT_EQ(session.last_step().evictions, 0) << made.name;
    }
    EXPECT_LE(memory.stats().allocated_peak, budget.item<std::int64_t>()) << made.name;
    int differ = 0;
    for (std::size_t k = 0; k < found.size(); ++k)
      differ += same_bits(plain.outcomes[static_cast<std::size_t>(i)][k], found[k]) ? 0 : 1;
    EXPECT_EQ(differ, 0) << made.name << ", step " << i;
  }
  // All have done the same.
  const at::Tensor of_all = torch::tensor({again, -again});
  world.all()->run(AllReduce{of_all, Reduce::Max});
  EXPECT_EQ(of_all[0].item<std::int64_t>(), -of_all[1].item<std::int64_t>());
  return again / kSteps;
}

/// Frozen weights, whose casts under autocast are the cheapest to evict, with adapters.
testing::Model adapted_in_bf16() {
  const testing::Model model = adapted_llama(kEven);
  for (auto& named : model->named_parameters()) {
    if (named.key().find("lora") == std::string::npos) named.value().set_requires_grad(false);
  }
  return model;
}

TEST(TensorParallelPlans, UnderABudgetInTwoProcesses) {
  in_processes(2, [](World& world) {
    for (const Made& made : testing::with_packed(kEven)) (void)within_a_budget_in_parts(world, made, {.share = 65});
  });
}
TEST(TensorParallelPlans, UnderABudgetWithSequencesInPartsInFourProcesses) {
  in_processes(4, [](World& world) {
    for (const Made& made : all_models(kEven))
      (void)within_a_budget_in_parts(world, made, {.between = models::Between::Sequences, .share = 85});
  });
}
/// What parts of blocks begin with is kept alone: what they gather is gathered again, where there are parts of
/// sequences.
TEST(TensorParallelPlans, APlanMayHaveAllDoCollectivesAgain) {
  in_processes(2, [](World& world) {
    const Made of_llama{"llama", [] { return llama(kEven); }}, adapted{"adapted", [] { return adapted_llama(kEven); }};
    for (const Made& made : {of_llama, adapted}) {
      for (const bool sequences : {false, true}) {
        const Terms terms{.between = sequences ? models::Between::Sequences : models::Between::Whole,
                          .share = 85,
                          .strategy = kModules};
        EXPECT_EQ(within_a_budget_in_parts(world, made, terms), sequences ? 6 : 0) << made.name;
      }
    }
  });
}
/// Memory runs out in one process alone, which drops what it can make again by itself: all do the same collectives, in
/// the same order, whatever it replays.
TEST(TensorParallelPlans, EvictionsInOneProcessAreItsOwn) {
  in_processes(2, [](World& world) {
    for (const std::string strategy : {kModules, "optimal", "eviction"}) {
      for (const bool sequences : {false, true}) {
        (void)within_a_budget_in_parts(world, {strategy, [] { return llama(kEven); }},
                                       {.between = sequences ? models::Between::Sequences : models::Between::Whole,
                                        .share = 90,
                                        .strategy = strategy,
                                        .crowd = 128_KiB});
      }
    }
  });
}
TEST(TensorParallelPlans, EvictionsOfCastsOfFrozenWeightsAreEachProcessesOwn) {
  in_processes(2, [](World& world) {
    for (const std::string strategy : {kModules, "optimal"}) {
      const Terms terms{
          .between = models::Between::Sequences, .share = 92, .strategy = strategy, .crowd = 32_KiB, .autocast = true};
      (void)within_a_budget_in_parts(world, {strategy, adapted_in_bf16}, terms);
    }
  });
}

/// One runs an operator more than it has recorded, and would keep what the others gather again: that ends in all.
TEST(TensorParallelPlans, AStepThatIsAnotherInOneProcessEndsInAll) {
  in_processes(2, [](World& world) {
    const Parts parts(world.group({0, 1}), llama(kEven), models::Between::Sequences);
    bool logs = false;
    const auto step = [&](const at::Tensor& batch) {
      if (!logs) return loss_of(*parts.model, batch);
      const at::Tensor more = torch::ones({3}).sum();  // at its beginning, where it may be another known step
      return loss_of(*parts.model, batch) + more.detach() * 0;
    };
    Bytes unplanned = 0;
    const auto fitted = [&](Bytes budget, const std::string& strategy) {
      return fit(step, tokens_of(0), {.budget = budget, .strategy = strategy, .agreement = agreement_of(world.all())});
    };
    {
      const Session all = fitted(1_GiB, "optimal");
      unplanned = all.plan().unplanned_peak;
    }
    // As little as the steps after the first take, in which there are gradients, and which keep what is made together.
    Session session = fitted(unplanned * 37 / 40, kModules);
    session.backward(step, tokens_of(0));
    EXPECT_TRUE(session.last_step().followed_plan);
    EXPECT_GT(session.last_step().replayed_ops, 0);
    logs = world.all()->rank() == 1;
    try {
      session.backward(step, tokens_of(0));
      ADD_FAILURE() << "it went on";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(logs ? "has differed from all plans here"
                                                          : "has followed a plan here, and not so in another"));
    }
    logs = false;
    session.backward(step, tokens_of(0));
    EXPECT_TRUE(session.last_step().followed_plan) << "and goes on with the next";
    logs = true;  // in all: known from now on, and the one that is expected
    for (int i = 0; i < 3; ++i) session.backward(step, tokens_of(0));
    EXPECT_EQ(session.last_step().known, 3);
    logs = world.all()->rank() == 1;
    EXPECT_THROW(session.backward(step, tokens_of(0)), Error) << "one goes back to the first plan, the other does not";
    logs = false;
    session.backward(step, tokens_of(0));
    EXPECT_TRUE(session.last_step().followed_plan);
  });
}

/// Each by itself, at another place: what the one still makes again with the other, that one has kept.
TEST(TensorParallelPlans, StepsThatDifferAtDifferentPlacesEndInAll) {
  in_processes(2, [](World& world) {
    const Parts parts(world.group({0, 1}), llama(kEven), models::Between::Sequences);
    int place = 0;
    const auto say = [&](int at) {
      if (place == at) (void)torch::ones({3}).sum();
    };
    const auto step = [&](const at::Tensor& batch) {
      say(1);
      const at::Tensor loss = loss_of(*parts.model, batch);
      say(2);
      return loss;
    };
    const auto agreement = agreement_of(world.all());
    const Bytes unplanned = fit(step, tokens_of(0), {.budget = 1_GiB, .agreement = agreement}).plan().unplanned_peak;
    Session session =
        fit(step, tokens_of(0), {.budget = unplanned * 37 / 40, .strategy = kModules, .agreement = agreement});
    session.backward(step, tokens_of(0));
    place = 1 + world.all()->rank();
    EXPECT_THROW(session.backward(step, tokens_of(0)), Error);
    place = 0;
    session.backward(step, tokens_of(0));
    EXPECT_TRUE(session.last_step().followed_plan);
  });
}

/// What is wrong before the first step, or behind it, leaves the layers' collectives as they are.
TEST(TensorParallelPlans, AfterARefusalBeforeOrBehindTheRecordingFitCanBeCalledAgain) {
  in_processes(2, [](World& world) {
    const Parts parts(world.group({0, 1}), llama(kEven), models::Between::Sequences);
    const auto step = [&](const at::Tensor& batch) { return loss_of(*parts.model, batch); };
    const auto fitted = [&](Bytes budget, const std::string& strategy) {
      return fit(step, tokens_of(0), {.budget = budget, .strategy = strategy, .agreement = agreement_of(world.all())});
    };
    EXPECT_THROW(fitted(0, "optimal"), UsageError);
    EXPECT_THROW(fitted(1_GiB, "no_such_strategy"), UsageError);
    const bool second = world.all()->rank() == 1;
    EXPECT_THROW(fitted(second ? 0 : 1_GiB, "optimal"), Error) << "in one of them, and so in all";
    EXPECT_THROW(fitted(1_GiB, second ? "revolve(9)" : "optimal"), Error);
    Session session = fitted(1_GiB, "optimal");
    session.backward(step, tokens_of(0));
    EXPECT_TRUE(session.last_step().followed_plan);
  });
}

/// The first searches for all, and all have the plans that each would find by itself.
TEST(TensorParallelPlans, AreSearchedOnce) {
  in_processes(2, [](World& world) {
    const Parts parts(world.group({0, 1}), llama(kEven), models::Between::Sequences);
    const auto agreement = agreement_of(world.all());
    const at::Tensor sample = tokens_of(0);
    auto kinds = replay::record_micro_batches(1, std::nullopt, [&] { return loss_of(*parts.model, sample); },
                                              testing::cpu(), {.agreement = agreement});
    ASSERT_TRUE(replay::agree_on(kinds, *agreement));
    const std::int64_t before = world.all()->count_of<Broadcast>().bytes;
    const auto all = replay::planned(kinds, "optimal", *agreement);
    EXPECT_GT(world.all()->count_of<Broadcast>().bytes, before + 10'000);
    const plan::TradeOff own(all.front().step.graph);
    ASSERT_NE(all.front().planner.trade_off(), nullptr);
    EXPECT_EQ(*all.front().planner.trade_off(), own);
    // With other graphs each finds its own.
    if (world.all()->rank() == 1) kinds.front().graph.static_bytes += 64;
    const auto apart = replay::planned(kinds, "optimal", *agreement);
    EXPECT_EQ(apart.front().planner.trade_off()->plans().front().predicted_peak -
                  all.front().planner.trade_off()->plans().front().predicted_peak,
              world.all()->rank() == 1 ? 64 : 0);
  });
}

/// What the first process lets its plans do with values is not for the others' plans to do.
TEST(TensorParallelPlans, ProcessesThatMayDoOtherThingsHaveNoCommonPlan) {
  in_processes(2, [](World& world) {
    const at::Tensor weight = torch::ones({64, 64}).requires_grad_();
    const auto agreement = agreement_of(world.all());
    for (const bool alike : {true, false}) {
      const bool lossy = alike || world.all()->rank() == 0;
      auto kinds = replay::record_micro_batches(
          1, std::nullopt,
          [&] {
            return torch::mm(torch::ones({64, 64}), weight).tanh().sum();
          },
          testing::cpu(), {.agreement = agreement, .lossy = lossy ? plan::Codec::Int8 : plan::Codec::None});
      EXPECT_EQ(replay::agree_on(kinds, *agreement), alike);
      EXPECT_EQ(kinds.front().graph.lossy, lossy ? plan::Codec::Int8 : plan::Codec::None);
    }
  });
}

/// Others have a word in what is gathered again, and are not asked.
TEST(TensorParallelPlans, AnAgreementOfSomeKeepsWhatOthersMakeToo) {
  in_processes(4, [](World& all) {
    Mesh mesh(std::shared_ptr<World>(&all, [](World*) {}), {{"data", 2}, {"tensor", 2}});
    const auto tensors = mesh.group({"tensor"});
    const Parts parts(tensors, llama(kEven), models::Between::Sequences);
    const auto step = [&](const at::Tensor& batch) { return loss_of(*parts.model, batch); };
    for (const bool of_all : {true, false}) {
      const auto agreement = agreement_of(of_all ? all.all() : mesh.group({"data"}));
      EXPECT_EQ(agreement->covers_collectives(), of_all);
      std::vector<std::int64_t> done;
      for (const Bytes share : {Bytes{100}, Bytes{90}}) {
        Bytes budget = 1_GiB;
        if (share < 100) {
          const Session whole = fit(step, tokens_of(0), {.budget = budget, .agreement = agreement});
          budget = whole.plan().unplanned_peak * share / 100;
        }
        Session session = fit(step, tokens_of(0),
                              {.budget = budget, .strategy = share < 100 ? kModules : "none", .agreement = agreement});
        const std::int64_t before = calls_of(*tensors);
        session.backward(step, tokens_of(0));
        done.push_back(calls_of(*tensors) - before);
      }
      EXPECT_EQ(done[1] - done[0], of_all ? 6 : 0);
    }
  });
}

/// Steps that are not the same in all processes have no common plan: nothing is made together twice.
TEST(TensorParallelPlans, UnderABudgetWithAnUnevenVocabularyNothingIsGatheredAgain) {
  in_processes(2, [](World& world) {
    const Made made{"llama", [] { return llama(kUneven); }};
    EXPECT_EQ(within_a_budget_in_parts(world, made, {.between = models::Between::Sequences, .share = 85}), 0);
    EXPECT_EQ(within_a_budget_in_parts(world, made,
                                       {.between = models::Between::Sequences, .share = 90, .strategy = kModules}),
              0);
  });
}
TEST(TensorParallelPlans, DropoutUnderABudgetHasTheSameBits) {
  in_processes(2, [](World& world) {
    for (const bool sequences : {false, true}) {
      const Made made{"gpt2 with dropout", [] { return gpt2(kEven, 0.1); }};
      (void)within_a_budget_in_parts(
          world, made, {.between = sequences ? models::Between::Sequences : models::Between::Whole, .share = 70});
      const std::string modules = "recompute_modules(attn,mlp)";
      (void)within_a_budget_in_parts(world, made,
                                     {.between = sequences ? models::Between::Sequences : models::Between::Whole,
                                      .share = 75,
                                      .strategy = modules});
    }
  });
}

}  // namespace
}  // namespace snug::parallel
