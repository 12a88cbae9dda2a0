#include "snug/replay/agreed_recording.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "snug/plan/step/other_memory.h"
#include "snug/plan/step/together.h"

namespace snug::replay {
namespace {

/// visit(number) of what there is beside a step.
template <class Visit>
void each_beside(RecordedStep& step, const Visit& visit) {
  visit(step.graph.static_bytes);
  for (auto& bytes : step.graph.static_by_tag) visit(bytes);
  for (auto& part : step.graph.parts) {
    visit(part.static_bytes);
    for (auto& bytes : part.static_by_tag) visit(bytes);
  }
  for (PassingBytes& passing : step.passing) {
    visit(passing.state_to_come);
    visit(passing.beside);
    visit(passing.gradients);
  }
  for (auto& use : step.streamed.uses) visit(use.at);
  visit(step.streamed.seconds);
  visit(step.streamed.at_once);
}

/// What the first process may do with values is not for the others to do, if it is not theirs too.
std::uint64_t what_plans_may_do(const plan::StepGraph& graph) {
  return 1 + static_cast<std::uint64_t>(graph.lossy) * 4 + (graph.moves.host ? 2 : 0) + (graph.moves.disk ? 1 : 0);
}

/// The budgets of tiers are each process's own.
plan::StepGraph with_budgets_of(plan::StepGraph graph, const plan::Moves& own) {
  if (graph.moves.host && own.host) graph.moves.host->budget = own.host->budget;
  if (graph.moves.disk && own.disk) graph.moves.disk->budget = own.disk->budget;
  return graph;
}

/// What all have beside the values of the same step becomes what is there in any of them, from one moment to the next.
void agree_on_memory(plan::OtherMemory& memory, Agreement& group) {
  std::vector<double> numbers;
  const auto each = [&](const auto& visit) {
    for (Bytes& bytes : memory.ends) visit(bytes);
    for (Bytes& bytes : memory.peaks) visit(bytes);
    visit(memory.update);
  };
  each([&](Bytes& bytes) { numbers.push_back(static_cast<double>(bytes)); });
  group.largest(numbers);
  auto next = numbers.begin();
  each([&](Bytes& bytes) { bytes = static_cast<Bytes>(*next++); });
}

void agree_on(RecordedStep& step, Agreement& group) {
  plan::OtherMemory memory = plan::other_memory_of(step.graph);
  agree_on_memory(memory, group);
  const std::string first = group.from_first(to_json(step.graph).dump());
  std::vector<double> beside;
  each_beside(step, [&](const auto& number) { beside.push_back(static_cast<double>(number)); });
  group.largest(beside);
  step.graph = with_budgets_of(plan::step_graph_from_json(nlohmann::json::parse(first)), step.graph.moves);
  std::size_t next = 0;
  each_beside(step,
              [&](auto& number) { number = static_cast<std::remove_reference_t<decltype(number)>>(beside[next++]); });
  plan::set_other_memory(step.graph, memory);
}

}  // namespace

bool agree_on(std::vector<RecordedStep>& kinds, Agreement& group) {
  const auto keep_together = [&] {
    for (RecordedStep& step : kinds) {
      if (step.kind != StepKind::Evaluation)  // which makes nothing again
        plan::keep_what_is_made_together(step.graph);
    }
  };
  if (&group == alone().get()) {
    keep_together();
    return true;
  }
  (void)ask(group, Vote::Yes);  // which one that has failed meanwhile answers
  std::uint64_t hash = kinds.size();
  for (RecordedStep& step : kinds) {
    std::size_t beside = 0;
    each_beside(step, [&](const auto&) { ++beside; });
    for (const std::uint64_t part : {step.graph.fingerprint(), plan::hash_of_uses(step.graph),
                                     static_cast<std::uint64_t>(beside), static_cast<std::uint64_t>(step.kind),
                                     static_cast<std::uint64_t>(step.graph.in_flight), what_plans_may_do(step.graph)})
      hash = (hash ^ part) * 0x9e3779b97f4a7c15ULL;
  }
  if (group.is_unlike_others() || !all_have(std::array{as_number(hash)}, group)) {
    keep_together();
    return false;
  }
  for (RecordedStep& step : kinds) {
    agree_on(step, group);
    plan::let_go_of_what_is_written_over(step.graph);
  }
  std::array<double, 1> beyond{group.covers_collectives() ? 0.0 : 1.0};
  group.largest(beyond);
  if (beyond.front() > 0) keep_together();
  return true;
}

}  // namespace snug::replay
