// Random differentiable programs, plain and with a random choice of what is dropped: outputs, gradients, second-order
// gradients, buffers and random numbers afterwards are the same bits, and all memory comes back.
//
// Usage: random_programs_test [PROGRAMS [SEED]]. A program that fails is shrunk and printed; random_programs_test -
// runs one that stands so on standard input.
#include <c10/core/AutogradState.h>
#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>
#include <rapidcheck.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>

#include "snug/models/gpt.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/replay/abandoned_tasks.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/programs/layers.h"
#include "tests/programs/program.h"
#include "tests/programs/random_plan.h"

namespace rc {
template <>
struct Arbitrary<snug::programs::Instruction> {
  static Gen<snug::programs::Instruction> arbitrary() {
    using snug::programs::Instruction;
    const auto byte = gen::inRange<std::uint8_t>(0, 255);
    return gen::build<Instruction>(gen::set(&Instruction::kind, byte), gen::set(&Instruction::variant, byte),
                                   gen::set(&Instruction::first, byte), gen::set(&Instruction::second, byte));
  }
};
template <>
struct Arbitrary<snug::programs::Program> {
  static Gen<snug::programs::Program> arbitrary() {
    using snug::programs::Program;
    return gen::build<Program>(gen::set(&Program::seed), gen::set(&Program::second_order),
                               gen::set(&Program::instructions));
  }
};
}  // namespace rc

namespace snug::programs {
namespace {

struct Outcome {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  std::string trace;
  std::string error;   // of backward, when it failed
  bool reran = false;  // it has called functions that may be called again
};

bool s_reran = false;  // in the run that goes on

struct Totals {
  std::int64_t programs = 0, refused_by_plain = 0, without_gradient = 0, second_order = 0, instructions = 0,
               skipped = 0;
  Bytes compressed = 0, moved = 0, streamed = 0, lossy = 0;
  std::int64_t replayed = 0, reruns = 0, planned = 0, written_afterwards = 0, leaks_of_plain = 0;
  std::map<std::string, std::int64_t> operators, refusals;
} totals;

World& world_of(const Program& program) {
  constexpr std::uint16_t kWorlds = 4;
  static std::map<int, World> worlds;
  return worlds.try_emplace(program.seed % kWorlds, static_cast<std::uint16_t>(program.seed % kWorlds)).first->second;
}

void add_all(Outcome& outcome, const std::string& name, const std::vector<at::Tensor>& tensors) {
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    outcome.tensors.emplace_back(fmt::format("{} {}", name, k),
                                 tensors[k].defined() ? tensors[k].detach().clone() : at::Tensor());
  }
}

/// What is left of a program: gradients by `differentiate`, and everything else that it changed.
template <class Run>
Outcome outcome_of(World& world, const Program& program, Run&& run) {
  world.reset(program.seed);
  Outcome outcome;
  s_reran = false;
  try {
    run(outcome);
  } catch (const std::exception& error) {
    outcome.error = error.what();
    if (outcome.error.empty()) outcome.error = "failed";
  }
  add_all(outcome, "output", world.outputs());
  add_all(outcome, "buffer", world.buffers());
  for (const c10::Device device : testing::test_devices())
    outcome.tensors.emplace_back("random numbers afterwards on " + device.str(), torch::rand({4}, device));
  outcome.trace = world.trace();
  outcome.reran = s_reran;
  return outcome;
}

void differentiate(World& world, const Program& program, const at::Tensor& loss, Outcome& outcome) {
  if (!loss.defined() || !loss.requires_grad()) return;
  const auto& weights = world.weights();
  const auto first = torch::autograd::grad({loss}, weights, {}, program.second_order, program.second_order, true);
  add_all(outcome, "gradient", first);
  if (!program.second_order) return;
  at::Tensor sum;
  for (const at::Tensor& g : first) {
    if (!g.defined() || !g.requires_grad()) continue;
    const at::Tensor part = g.to(at::kDouble).square().sum().to(testing::test_device());
    sum = sum.defined() ? sum + part : part;
  }
  if (!sum.defined()) return;
  add_all(outcome, "second-order gradient", torch::autograd::grad({sum}, weights, {}, false, false, true));
}

Outcome run_plain(World& world, const Program& program) {
  return outcome_of(world, program,
                    [&](Outcome& outcome) { differentiate(world, program, world.run(program), outcome); });
}

/// Any of the things that a region can do.
RegionAction action_of(std::uint8_t kind) {
  switch (kind % 5) {
    case 0:
      return Keep{};
    case 3:
      return Offload{.min_bytes = kind % 64};
    case 1:
      return Selective{.keep = {"aten::mm", "aten::mul", "aten::sin"}};
    case 2:
      return SelectivePolicy([kind](const OperatorContext& context) {
        return static_cast<Choice>((kind / 4 + context.invocation + static_cast<std::int64_t>(context.name.size())) %
                                   5);
      });
    default:
      return Recompute{};
  }
}

/// Any of the ways to get back what a checkpoint drops. Not by values: what an operator leaves unwritten differs.
CheckpointOptions options_of(std::uint8_t kind) {
  if (kind % 3 == 0) return {.mode = Replay{.region = action_of(kind / 3)}};
  return {.mode = Rerun{.determinism_check = kind % 4 == 1 ? DeterminismCheck::None : DeterminismCheck::Metadata,
                        .debug = kind % 16 == 2,
                        .early_stop = kind % 8 < 4}};
}

std::vector<at::Tensor> checkpointed(std::uint8_t kind, const Piece& piece, std::vector<at::Tensor> live) {
  const auto counted = [piece, again = std::make_shared<bool>(false)](std::vector<at::Tensor> now) {
    totals.reruns += std::exchange(*again, true);
    return piece(std::move(now));
  };
  const CheckpointOptions options = options_of(kind);
  s_reran = s_reran || std::holds_alternative<Rerun>(options.mode);
  return checkpoint(options, counted, std::move(live));
}

Outcome run_in_regions(World& world, const Program& program, bool backward_inside) {
  return outcome_of(world, program, [&](Outcome& outcome) {
    std::vector<std::unique_ptr<Region>> open;
    RegionCalls calls;
    calls.open = [&](std::uint8_t kind) { open.push_back(std::make_unique<Region>(action_of(kind))); };
    calls.close = [&] { open.pop_back(); };
    calls.checkpoint = &checkpointed;
    // With hashes now and then: they must not raise a false alarm.
    auto whole = std::make_unique<Region>(Recompute{}, RegionOptions{.verify_replay = VerifyReplay(program.seed % 4)});
    const at::Tensor loss = world.run(program, calls);
    if (!backward_inside) whole.reset();
    differentiate(world, program, loss, outcome);
    if (whole) totals.replayed += whole->replayed_ops();
  });
}

/// Gradients go into .grad there.
template <class MakePlan>
Outcome run_planned(World& world, const Program& program, const MakePlan& make_plan) {
  return outcome_of(world, program, [&](Outcome& outcome) {
    RegionCalls calls;
    if (program.seed % 2 == 0) calls.checkpoint = &checkpointed;
    const auto forward = [&] { return world.run(program, calls); };
    auto& memory = testing::test_memory();
    auto step = replay::record_step(forward, memory);
    for (const plan::OpInfo& op : step.graph.ops) ++totals.operators[op.name];
    plan::MemoryPlan plan = make_plan(step.graph);
    plan::Planner planner(step.graph, std::move(plan));
    Session session(std::move(step), std::move(planner), std::nullopt, memory);
    session.backward(forward);
    totals.replayed += session.last_step().replayed_ops;
    totals.compressed += session.last_step().compressed_bytes;
    totals.moved += session.last_step().moved_bytes;
    totals.lossy += session.last_step().lossy_bytes;
    RC_ASSERT(session.last_step().followed_plan);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& w : world.weights()) gradients.push_back(w.grad());
    add_all(outcome, "gradient", gradients);
  });
}

/// Weights and buffers come while they are used, into windows of any size.
Outcome run_streamed(World& world, const Program& program) {
  return outcome_of(world, program, [&](Outcome& outcome) {
    std::mt19937 random(program.seed);
    StreamedTensors streamed({.host_budget = 1_GiB, .min_bytes = 1});
    std::vector<at::Tensor> tensors = world.weights();
    for (const at::Tensor& buffer : world.buffers()) tensors.push_back(buffer);
    std::erase_if(tensors, [](const at::Tensor& t) { return t.device() != testing::test_device(); });
    streamed.add(tensors);
    constexpr Bytes kPlace = 4_KiB;
    const Bytes places = random() % 8, rotating = places > 0 ? random() % places : 0;
    streamed.open({.bytes = places * kPlace, .rotating = rotating * kPlace});
    for (int i = 0; i < 2; ++i) {  // the second in an order that is known
      if (i > 0) world.reset(program.seed);
      streamed.next_step();
      Outcome again;
      std::optional<Region> dropped;
      if (random() % 2 == 0) dropped.emplace(Recompute{});
      const at::Tensor loss = world.run(program);
      differentiate(world, program, loss, i > 0 ? outcome : again);
    }
    totals.streamed += streamed.totals().in;
  });
}

void must_be_equal(const std::string& how, const Outcome& plain, const Outcome& other) {
  if (!plain.error.empty()) {
    // LibTorch refuses it; so must we, or the gradient is right all the same. What went before is compared below.
    return;
  }
  // A rerun holds all its arguments, and a region inside of one is recorded on its own: neither sees what is written to
  // them afterwards, and each says so, as it must.
  if (other.reran && other.error.find("modified in place") != std::string::npos) {
    ++totals.written_afterwards;
    return;
  }
  if (!other.error.empty()) RC_FAIL(how + " fails: " + other.error);
  RC_ASSERT(plain.trace == other.trace);
  RC_ASSERT(plain.tensors.size() == other.tensors.size());
  for (std::size_t k = 0; k < plain.tensors.size(); ++k) {
    if (!testing::same_bits(plain.tensors[k].second, other.tensors[k].second))
      RC_FAIL(fmt::format("{}: {} differs\nplain {}\nother {}", how, plain.tensors[k].first,
                          fmt::streamed(plain.tensors[k].second), fmt::streamed(other.tensors[k].second)));
  }
}

/// Lossy codecs change what backward is given, and nothing else does: not what is beside them in a plan, and nothing
/// but gradients.
void check_lossy(World& world, const Program& program, const Outcome& plain) {
  const auto lossy_plan = [&](plan::StepGraph& graph) { return random_plan(graph, program.seed, Codecs::AlsoLossy); };
  const Outcome alone = run_planned(world, program, [&](plan::StepGraph& graph) {
    const plan::MemoryPlan plan = lossy_plan(graph);
    return plan::plan_lossy_alone(graph, plan);
  });
  must_be_equal("a plan with lossy codecs", alone, run_planned(world, program, lossy_plan));
  const auto but_gradients = [](Outcome outcome) {
    std::erase_if(outcome.tensors, [](const auto& named) { return named.first.starts_with("gradient"); });
    return outcome;
  };
  must_be_equal("lossy codecs, but for gradients,", but_gradients(plain), but_gradients(alone));
}

void check(const Program& program) {
  World& world = world_of(program);
  const Outcome plain = run_plain(world, program);
  const bool has_loss = world.run(program).defined();
  ++totals.programs;
  totals.second_order += program.second_order;
  totals.instructions += static_cast<std::int64_t>(plain.trace.size());
  totals.skipped += std::ranges::count(plain.trace, 'x');
  if (!plain.error.empty()) {
    ++totals.refused_by_plain;
    ++totals.refusals[plain.error.substr(0, plain.error.find('\n')).substr(0, 100)];
  }
  const auto settled_bytes = [&] {
    world.reset(program.seed);
    world.forget();
    std::vector<c10::Device> accelerators = testing::test_devices();
    std::erase_if(accelerators, [](c10::Device device) { return device.is_cpu(); });
    replay::release_abandoned_tasks(std::move(accelerators));
    Bytes allocated = 0;
    for (const c10::Device device : testing::test_devices())
      allocated += testing::settled(memory::device_memory(device));
    return allocated;
  };
  const Bytes at_first = settled_bytes();
  must_be_equal("a second plain run", plain, run_plain(world, program));
  // Autograd keeps some graphs alive by a cycle (var_mean's result, written in place).
  const Bytes before = settled_bytes();
  const bool plain_leaks = before != at_first;
  totals.leaks_of_plain += plain_leaks;
  must_be_equal("streamed", plain, run_streamed(world, program));
  must_be_equal("everything dropped", plain, run_in_regions(world, program, program.seed % 2 == 0));
  if (!has_loss) {
    ++totals.without_gradient;
  } else if (!program.second_order) {
    ++totals.planned;
    must_be_equal("a random plan", plain, run_planned(world, program, [&](plan::StepGraph& graph) {
                    return random_plan(graph, program.seed, Codecs::Exact);
                  }));
    check_lossy(world, program, plain);
  }
  if (!plain_leaks) RC_ASSERT(settled_bytes() == before);
}

/// The operators of torch::nn's layers and of the models that no program has run under a plan.
std::vector<std::string> never_run() {
  auto& memory = testing::test_memory();
  const auto modules = make_layers();
  std::map<std::string, bool> needed;
  const auto add = [&](const replay::Forward& forward) {
    for (const plan::OpInfo& op : replay::record_step(forward, memory).graph.ops) needed[op.name] = true;
  };
  add([&] { return call_every_layer(modules); });
  models::Gpt gpt(
      models::GptOptions{.blocks = 1, .width = 8, .heads = 2, .sequence = 4, .vocabulary = 16, .dropout = 0.1});
  const at::Tensor tokens = torch::randint(0, 16, {2, 4});
  add([&] { return gpt->loss(tokens, tokens); });
  std::vector<std::string> missing;
  for (const auto& [name, is_needed] : needed) {
    if (!totals.operators.contains(name)) missing.push_back(name);
  }
  return missing;
}

}  // namespace
}  // namespace snug::programs

/// A program as it is printed when it fails.
snug::programs::Program read_program(std::istream& in) {
  snug::programs::Program program;
  for (std::string line; std::getline(in, line);) {
    if (const auto at = line.find("seed "); at != std::string::npos)
      program.seed = static_cast<std::uint16_t>(std::stoi(line.substr(at + 5)));
    program.second_order |= line.find("second order") != std::string::npos;
    const auto open = line.find('{');
    if (open == std::string::npos) continue;
    std::array<int, 4> n{};
    if (std::sscanf(line.c_str() + open, "{%d, %d, %d, %d}", &n[0], &n[1], &n[2], &n[3]) != 4) continue;
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(n[i]); };
    program.instructions.push_back({byte(0), byte(1), byte(2), byte(3)});
  }
  return program;
}

int main(int argc, char** argv) {
  const std::string programs = argc > 1 ? argv[1] : "500";
  const bool given = programs == "-";
  std::string parameters = "max_success=" + programs + " max_size=60";
  if (given) parameters = "max_success=1";
  if (argc > 2) parameters += std::string(" seed=") + argv[2];
  ::setenv("RC_PARAMS", parameters.c_str(), 0);
  torch::set_num_threads(1);
  // Where a sum has parts from two devices, their threads add them up as they come, and plain runs differ.
  if (!snug::testing::test_device().is_cpu()) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  if (given) {
    const auto program = read_program(std::cin);
    return rc::check("the program on standard input", [&program] { snug::programs::check(program); }) ? 0 : 1;
  }
  using snug::programs::totals;
  const bool passed = rc::check("random programs give the same bits with and without their memory",
                                [](const snug::programs::Program& program) { snug::programs::check(program); });
  std::cout << fmt::format(
      "{} programs: {} instructions, {} of them refused by LibTorch; {} of second order, {} with a random plan, {} "
      "without a gradient, {} whose backward LibTorch refuses; {} operators replayed, {} bytes moved, {} "
      "compressed, {} with loss, and {} streamed, {} functions called again; {} "
      "different operators; {} runs refused because an argument of a rerun was written afterwards; {} whose plain run "
      "leaks memory\n",
      totals.programs, totals.instructions, totals.skipped, totals.second_order, totals.planned,
      totals.without_gradient, totals.refused_by_plain, totals.replayed, totals.moved, totals.compressed, totals.lossy,
      totals.streamed, totals.reruns, totals.operators.size(), totals.written_afterwards, totals.leaks_of_plain);
  for (const auto& [text, count] : totals.refusals) std::cout << fmt::format("refused {} x: {}\n", count, text);
  // With so many, all that models use must have come up.
  constexpr std::int64_t kEnoughForAll = 5000;
  const auto missing = snug::programs::never_run();
  if (!missing.empty())
    std::cout << fmt::format("operators of layers and models not run: {}\n", fmt::join(missing, ", "));
  if (totals.programs >= kEnoughForAll && !missing.empty() && snug::testing::test_device().is_cpu()) return 1;
  constexpr std::int64_t kRarely = 50;  // one in so many
  constexpr std::int64_t kEnoughForBoth = 200;
  if (totals.programs >= kEnoughForBoth && snug::testing::test_device().is_cpu() &&
      (totals.moved == 0 || totals.compressed == 0 || totals.lossy == 0))
    return 1;
  if (totals.programs >= kRarely && totals.written_afterwards > totals.programs / kRarely) {
    std::cout << "too many runs were refused\n";
    return 1;
  }
  return passed ? 0 : 1;
}
