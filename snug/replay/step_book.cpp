#include "snug/replay/step_book.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/memory/tag.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/several_stages.h"
#include "snug/plan/step/together.h"
#include "snug/replay/step_parts.h"

namespace snug::replay {
namespace {

// More than that is forgotten, the step that ran longest ago first: a thousand operators take half a MiB.
constexpr std::size_t kFewestSteps = 64, kMostOperators = 250'000;

/// A hash of what a plan has the step do.
std::uint64_t decisions_of(const plan::MemoryPlan& plan) {
  const nlohmann::ordered_json all = to_json(plan);
  std::string text;
  for (const char* const part : {"fingerprint", "actions", "segments", "staging"}) {
    if (const auto found = all.find(part); found != all.end()) text += found->dump();
  }
  return hash_64(std::as_bytes(std::span(text)));
}

Bytes predicted_peak_on(const plan::MemoryPlan& plan, const std::string& device) {
  const auto found = std::ranges::find(plan.others, device, &plan::PlannedPart::device);
  return found != plan.others.end() ? found->predicted_peak : 0;
}

}  // namespace

StepBook::StepBook(std::vector<PlannedStep> kinds, plan::Budgets budgets, const std::vector<Bytes>& gradients,
                   std::shared_ptr<Agreement> agreement)
    : budgets_(std::move(budgets)), agreement_(std::move(agreement)) {
  or_tell(*agreement_, [&] {
    if (kinds.empty() || kinds.front().step.kind == StepKind::Evaluation)
      throw UsageError("session: the first of its steps has no backward pass; give one that has in front");
  });
  strategy_ = kinds.front().planner.strategy();
  const RecordedStep& first = kinds.front().step;
  outside_.resize(1 + budgets_.others.size());
  for_each_part(first.graph, budgets_, [&](std::size_t device, std::size_t part, Bytes there, const auto&) {
    const PassingBytes passing = part < first.passing.size() ? first.passing[part] : PassingBytes{};
    const Bytes of_before = device < gradients.size() ? gradients[device] : 0;
    outside_[device] = OutsideMemory(there - of_before - passing.gradients, passing);
  });
  std::vector<plan::MemoryPlan> plans;
  agree(refusal_of([&] { plans = plan_all(kinds, budgets_); }));
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    auto& [step, planner] = kinds[i];
    if (step.kind == StepKind::Evaluation) {  // nobody follows a plan that has nothing to decide
      of_evaluation_ = std::max(of_evaluation_, plans[i].predicted_peak);
      continue;
    }
    known_.push_back({.graph = std::make_shared<plan::StepGraph>(std::move(step.graph)),
                      .plan = std::make_shared<plan::MemoryPlan>(std::move(plans[i])),
                      .planner = std::move(planner),
                      .kind = step.kind,
                      .stage = step.kind == StepKind::MicroBatch});
  }
  count_others_held();
  replays_together_ =
      std::ranges::any_of(known_, [](const Known& known) { return plan::may_replay_together(*known.graph); });
  check_same_plans();
}

StepBook::StepBook(std::string strategy, plan::Budgets budgets, std::shared_ptr<Agreement> agreement)
    : strategy_(std::move(strategy)), budgets_(std::move(budgets)), agreement_(std::move(agreement)) {
  outside_.resize(1 + budgets_.others.size());
  agree(nullptr);
}

const StepBook::Known& StepBook::last() const {
  if (known_.empty())
    throw UsageError("session: no step has run yet, so that there is no plan; it is made from the first one");
  return known_.front();
}

std::vector<StepBook::Known*> StepBook::stages() {
  std::vector<Known*> stages;
  for (Known& known : known_) {
    if (known.stage) stages.push_back(&known);
  }
  if (stages.size() < 2) stages.clear();
  return stages;
}

void StepBook::count_others_held() {
  const std::vector<Known*> all = stages();

  std::vector<std::shared_ptr<plan::StepGraph>> graphs;
  std::vector<plan::StepGraph*> bare;
  std::vector<plan::MemoryPlan> plans;
  for (const Known* const known : all) {
    bare.push_back(graphs.emplace_back(std::make_shared<plan::StepGraph>(*known->graph)).get());
    plans.push_back(*known->plan);
  }
  plan::set_others_held(bare, plans);
  for (std::size_t i = 0; i < all.size(); ++i) all[i]->graph = std::move(graphs[i]);
}

void StepBook::check_same_plans() const {
  if (!replays_together_) return;
  std::uint64_t hash = 0;  // whatever order they have run in
  for (const Known& known : known_) {
    if (plan::may_replay_together(*known.graph)) hash += decisions_of(*known.plan);
  }
  if (all_have(std::array{as_number(hash)}, *agreement_)) return;
  throw Error(
      "session: processes that make again together what they have made together have other plans of it; give all of "
      "them the same budgets, and plans from one file");
}

std::exception_ptr StepBook::refusal_of(const std::function<void()>& plan) const {
  try {
    plan();
  } catch (const DoesNotFit&) {
    return std::current_exception();
  } catch (...) {
    tell_failure(*agreement_);
    throw;
  }
  return nullptr;
}

void StepBook::agree(const std::exception_ptr& refusal) {
  const Vote all = ask(*agreement_, refusal ? Vote::No : Vote::Yes, &processes_);
  if (refusal) std::rethrow_exception(refusal);
  if (all == Vote::No) {
    throw Error(
        "session: the step fits the budget here, but not in another process of the group, which says what it takes; "
        "raise the budget there, or use a smaller batch");
  }
}

void StepBook::forward_over(const plan::StepGraph* followed, std::optional<plan::OpId> differed) const {
  if (!replays_together_) return;
  // What has been left absent follows from the plan, and from where it was followed no more.
  const std::uint64_t plan = followed != nullptr ? followed->fingerprint() : 0;
  const std::uint64_t place = differed ? 1 + static_cast<std::uint64_t>(*differed) : 0;
  if (all_have(std::array{as_number(plan), static_cast<double>(place)}, *agreement_)) return;
  const bool followed_to_its_end = followed != nullptr && !differed;
  throw Error(
      fmt::format("session: the step {} here{}, and not so in another process of the group; what its plan has all of "
                  "them make again "
                  "together cannot be: run the same operators in all of them, or leave out the budget",
                  followed_to_its_end ? "has followed a plan" : "has differed from all plans",
                  differed ? fmt::format(", at its operator {}", *differed) : std::string()));
}

void StepBook::count_missing(plan::StepGraph& graph) const {
  for_each_part(graph, budgets_, [&](std::size_t device, std::size_t, Bytes& bytes, memory::ByTag& by_tag) {
    outside_[device].count_missing(bytes, by_tag);
  });
}

void StepBook::forget_old() {
  std::size_t operators = 0, kept = 0;
  for (; kept < known_.size(); ++kept) {
    operators += known_[kept].graph->ops.size();
    if (kept >= kFewestSteps && operators > kMostOperators) break;
  }
  known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(kept), known_.end());
}

bool StepBook::ran(const plan::StepGraph* graph) {
  const auto found = std::ranges::find_if(known_, [&](const Known& known) { return known.graph.get() == graph; });
  if (found == known_.end()) return false;
  std::rotate(known_.begin(), found, found + 1);
  return known_.front().added;
}

bool StepBook::outdated(const Known& known, const std::vector<Now>& devices) const {
  bool outdated = false;
  for_each_part(*known.graph, budgets_, [&](std::size_t device, std::size_t, Bytes planned_with, const auto&) {
    if (device >= devices.size() || (device == 0 && !budgets_.own)) return;
    const plan::Budget& budget = device == 0 ? *budgets_.own : budgets_.others[device - 1].budget;
    const Bytes peak =
        device == 0 ? known.plan->predicted_peak : predicted_peak_on(*known.plan, budgets_.others[device - 1].device);
    const Bytes grown = devices[device].stats.allocated + outside_[device].to_come() - planned_with;
    // Much less than before would let a faster plan fit, or one at all.
    if (grown <= -budget.limit / 20) outdated = true;
    if (!known.fits) return;
    const Bytes room = budget.for_blocks() - peak;
    // The reserve covers odds and ends.
    if (grown > std::max<Bytes>(room, 0) + budget.reserve / 2) outdated = true;
  });
  return outdated;
}

Bytes StepBook::predicted_peak() const {
  Bytes highest = of_evaluation_;
  for (const Known& known : known_) {
    if (known.fits) highest = std::max(highest, known.plan->predicted_peak);
  }
  return highest > 0 ? highest : last().plan->predicted_peak;
}

Bytes StepBook::unplanned_peak() const {
  Bytes highest = 0;
  for (const Known& known : known_) highest = std::max(highest, known.plan->unplanned_peak);
  return highest;
}

bool StepBook::expects(StepKind kind) const { return std::ranges::find(known_, kind, &Known::kind) != known_.end(); }

void StepBook::begin(const std::vector<Now>& devices, StepKind kind) {
  for (std::size_t device = 0; device < std::min(devices.size(), outside_.size()); ++device)
    outside_[device].begin(devices[device].stats.allocated, devices[device].gradients);
  for (Known& known : known_) {
    if (known.search && known.search->is_over()) take_searched(known);
  }
  const auto expected = std::ranges::find(known_, kind, &Known::kind);
  // Without a budget every plan stands, but the others of the group may have one.
  const bool planned = has_budget() && expected != known_.end();
  const auto is_outdated = [&](const Known& known) {
    return &known == &*expected || (expected->stage && known.stage) ? outdated(known, devices) : false;
  };
  const bool stands = !planned || std::ranges::none_of(known_, is_outdated);

  if (ask(*agreement_, stands ? Vote::Yes : Vote::No) == Vote::Yes) return;
  const std::vector<Now> of_all = most_of_all(devices);
  agree(refusal_of([&] {
    if (planned) plan_again(kind, of_all);
  }));
  check_same_plans();
}

/// Plans are made for what the process has that has most.
std::vector<StepBook::Now> StepBook::most_of_all(std::vector<Now> devices) {
  std::vector<double> numbers;
  for (const Now& now : devices) {
    numbers.push_back(static_cast<double>(now.stats.allocated));
    for (const Bytes bytes : now.stats.by_tag) numbers.push_back(static_cast<double>(bytes));
  }
  for (OutsideMemory& outside : outside_)
    outside.each_passing([&](Bytes& bytes) { numbers.push_back(static_cast<double>(bytes)); });
  agreement_->largest(numbers);
  auto next = numbers.begin();
  for (Now& now : devices) {
    now.stats.allocated = static_cast<Bytes>(*next++);
    for (Bytes& bytes : now.stats.by_tag) bytes = static_cast<Bytes>(*next++);
  }
  for (OutsideMemory& outside : outside_)
    outside.each_passing([&](Bytes& bytes) { bytes = static_cast<Bytes>(*next++); });
  return devices;
}

std::vector<record::KnownStep> StepBook::steps(StepKind kind) const {
  const bool all = !expects(kind);
  std::vector<record::KnownStep> steps;
  for (const Known& known : known_) {
    if (all || known.kind == kind) steps.push_back({known.plan, known.graph});
  }
  return steps;
}

}  // namespace snug::replay
