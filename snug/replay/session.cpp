#include "snug/replay/session.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

#include "snug/base/errors.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/tag.h"
#include "snug/plan/strategy.h"
#include "snug/replay/gradient_bytes.h"
#include "snug/replay/other_devices.h"
#include "snug/replay/session_state.h"
#include "snug/replay/session_step.h"

namespace snug {
namespace {

/// Tags a gradient as soon as it stands in .grad, so that the split by tag is right during backward too.
class TagGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable& variable) override {
    const at::Tensor& gradient = variable.grad();
    if (gradient.defined() && gradient.has_storage()) memory::retag(gradient.storage(), memory::Tag::Gradients);
  }
};

/// Of all kinds of steps, each once.
std::vector<at::Tensor> parameters_of(const std::vector<replay::PlannedStep>& kinds) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const void*> known;
  for (const auto& [step, planner] : kinds) {
    for (const at::Tensor& p : step.parameters) {
      if (known.insert(p.unsafeGetTensorImpl()).second) parameters.push_back(p);
    }
  }
  return parameters;
}

template <class T>
std::vector<T> only(T one) {
  std::vector<T> all;
  all.push_back(std::move(one));
  return all;
}

}  // namespace

Session::State::State(memory::DeviceMemory& of_device, replay::StepBook its_book,
                      std::optional<plan::Budget> its_budget, std::vector<DeviceBudget> other_budgets)
    : memory(of_device),
      book(std::move(its_book)),
      budget(its_budget),
      limit(its_budget ? std::make_unique<memory::HeldLimit>(of_device, its_budget->limit) : nullptr),
      others(std::move(other_budgets)) {
  for (const auto& [device, bytes] : others)
    other_limits.push_back(std::make_unique<memory::HeldLimit>(memory::device_memory(device), bytes));
}

void Session::State::add_parameters(const std::vector<at::Tensor>& found) {
  std::vector<at::Tensor> with_hook;
  for (const at::Tensor& p : parameters.add(found)) {
    // A hook that is already there is somebody else's, and there is room for one.
    if (torch::autograd::impl::post_acc_grad_hooks(p)) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<TagGradient>());
    with_hook.push_back(p);
  }
  hooked.add(with_hook);
}

Session::State::~State() {
  for (const at::Tensor& p : hooked.alive()) {
    // Somebody may have put another in its place.
    const auto& hook = torch::autograd::impl::post_acc_grad_hooks(p);
    if (dynamic_cast<const TagGradient*>(hook.get()) != nullptr)
      torch::autograd::impl::set_post_acc_grad_hooks(p, nullptr);
  }
}

Session::Session(replay::RecordedStep step, std::string_view strategy, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement)
    : Session(only(std::move(step)), strategy, budget, memory, std::move(agreement)) {}

Session::Session(replay::RecordedStep step, plan::Planner planner, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement)
    : Session(only(replay::PlannedStep{std::move(step), std::move(planner)}), budget, memory, std::move(agreement)) {}

Session::Session(std::vector<replay::RecordedStep> kinds, std::string_view strategy, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement, std::vector<DeviceBudget> others)
    : Session{// Braces: in this order.
              replay::or_tell(*agreement, [&] { return replay::planned(std::move(kinds), strategy); }), budget, memory,
              std::move(agreement), std::move(others)} {}

Session::Session(std::vector<replay::PlannedStep> kinds, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement, std::vector<DeviceBudget> others) {
  others = replay::with_indices(std::move(others));
  replay::or_tell(*agreement, [&] { replay::check_other_budgets(others, memory.device()); });
  std::vector<at::Tensor> parameters = parameters_of(kinds);
  const replay::StepBackward backward = kinds.empty() ? replay::StepBackward() : kinds.front().step.backward;
  std::vector<Bytes> gradients;
  for (const memory::DeviceMemory* const device : replay::memories_of(memory, others))
    gradients.push_back(replay::gradient_bytes(parameters, *device));
  replay::StepBook book(std::move(kinds), replay::budgets_of(budget, others), gradients, std::move(agreement));
  state_ = std::make_unique<State>(memory, std::move(book), budget, std::move(others));
  state_->add_parameters(parameters);
  state_->steps.backward = backward;
  state_->steps.in_micro_batches = state_->book.expects(replay::StepKind::MicroBatch);
}

Session Session::without_sample(std::string_view strategy, plan::Budget budget, memory::DeviceMemory& memory,
                                std::shared_ptr<Agreement> agreement, std::vector<DeviceBudget> others) {
  others = replay::with_indices(std::move(others));
  replay::or_tell(*agreement, [&] {
    if (budget.limit <= 0)
      throw UsageError(fmt::format("fit: the budget is {} bytes; it must be positive", budget.limit));
    (void)plan::strategy_from(strategy);
    replay::check_other_budgets(others, memory.device());
  });
  replay::StepBook book(std::string(strategy), replay::budgets_of(budget, others), std::move(agreement));
  auto state = std::make_unique<State>(memory, std::move(book), budget, std::move(others));
  state->finds_parameters = true;
  state->steps.vary = true;  // the first step may set up what later ones only use
  return Session(std::move(state));
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

void Session::verify_replays(VerifyReplay how) noexcept { state_->verify = how; }

void Session::use(std::shared_ptr<memory::Tiers> tiers) noexcept { state_->tiers = std::move(tiers); }
const memory::Tiers& Session::tiers() const noexcept { return *state_->tiers; }

void Session::use(std::shared_ptr<StreamedTensors> streamed) noexcept { state_->streamed = std::move(streamed); }

void Session::use_arena() { state_->arena = replay::StepArena::of(state_->memory); }
std::optional<replay::StepArena::Stats> Session::arena() const {
  return state_->arena ? std::optional(state_->arena->stats()) : std::nullopt;
}

bool Session::steps_go_backward() const { return !std::holds_alternative<replay::ReturnsLoss>(state_->steps.backward); }
void Session::finish_searches() { state_->book.finish_searches(); }

void Session::anomalies(Anomalies become) noexcept { state_->anomalies = become; }
void Session::follow(Follow what) noexcept { state_->follow = what; }

const plan::MemoryPlan& Session::plan() const { return state_->book.plan(); }
const plan::StepGraph& Session::graph() const { return state_->book.graph(); }
const plan::Planner* Session::planner() const { return state_->book.planner(); }
Bytes Session::predicted_peak() const { return state_->book.predicted_peak(); }
Bytes Session::unplanned_peak() const { return state_->book.unplanned_peak(); }
const Session::StepReport& Session::last_step() const { return state_->last; }
const replay::StepTrace& Session::last_trace() const { return state_->trace; }

at::Tensor Session::run(const replay::Forward& forward) { return Step(*state_).run(forward); }

}  // namespace snug
