#include "snug/replay/session.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "snug/memory/tag.h"
#include "snug/plan/planner.h"
#include "snug/record/recording.h"
#include "snug/replay/eviction.h"

namespace snug {
namespace {

/// Tags a gradient as soon as it stands in .grad, so that the split by tag is right during backward too.
class TagGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit TagGradient(memory::DeviceMemory& memory) : memory_(memory) {}
  void operator()(const torch::autograd::Variable& variable) override {
    const at::Tensor& gradient = variable.grad();
    if (gradient.defined() && gradient.has_storage()) memory_.retag(gradient.storage(), memory::Tag::Gradients);
  }

 private:
  memory::DeviceMemory& memory_;
};

}  // namespace

struct Session::State {
  memory::DeviceMemory& memory;
  std::shared_ptr<const plan::StepGraph> graph;
  std::shared_ptr<const plan::MemoryPlan> plan;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> hooked;
  plan::Planner planner;
  std::optional<plan::Budget> budget;
  std::optional<Bytes> limit_before;
  StepReport last;

  ~State() {
    for (const at::Tensor& p : hooked) torch::autograd::impl::set_post_acc_grad_hooks(p, nullptr);
    if (budget) memory.set_limit(limit_before);
  }

  /// Other memory than when the step was recorded, such as optimizer state made since, calls for another plan.
  void plan_again_if_needed() {
    if (!budget) return;
    const memory::Stats stats = memory.stats();
    const Bytes grown = stats.allocated - graph->static_bytes;
    const Bytes room = budget->device - budget->reserve - plan->predicted_peak;
    // The reserve covers odds and ends; much less than before would let a faster plan fit.
    if (grown <= std::max<Bytes>(room, 0) + budget->reserve / 2 && grown > -budget->device / 20) return;
    auto moved = std::make_shared<plan::StepGraph>(*graph);
    moved->static_bytes = stats.allocated;
    moved->static_by_tag = stats.by_tag;
    plan = std::make_shared<plan::MemoryPlan>(planner.plan(*moved, budget));
    graph = std::move(moved);
  }
};

Session::Session(replay::RecordedStep step, std::string_view strategy, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory)
    : Session(step, plan::Planner(step.graph, strategy), budget, memory) {}

Session::Session(replay::RecordedStep step, plan::Planner planner, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory) {
  auto graph = std::make_shared<plan::StepGraph>(std::move(step.graph));
  auto plan = std::make_shared<plan::MemoryPlan>(planner.plan(*graph, budget));
  state_.reset(new State{memory,
                         std::move(graph),
                         std::move(plan),
                         std::move(step.parameters),
                         {},
                         std::move(planner),
                         budget,
                         memory.stats().limit,
                         {}});
  if (budget) memory.set_limit(budget->device);
  for (const at::Tensor& p : state_->parameters) {
    if (p.has_storage()) memory.retag(p.storage(), memory::Tag::Weights);
    // A hook that is already there is somebody else's, and there is room for one.
    if (torch::autograd::impl::post_acc_grad_hooks(p)) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<TagGradient>(memory));
    state_->hooked.push_back(p);
  }
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const plan::MemoryPlan& Session::plan() const { return *state_->plan; }
const plan::StepGraph& Session::graph() const { return *state_->graph; }
const Session::StepReport& Session::last_step() const { return state_->last; }

at::Tensor Session::run(const replay::Forward& forward) {
  State& s = *state_;
  s.plan_again_if_needed();
  const auto tape = std::make_shared<record::Tape>(record::FollowPlan{s.plan, s.graph});
  const replay::Evictor evictor(tape, s.memory);
  at::Tensor loss;
  {
    const record::Recording recording(tape);
    const memory::TagScope tag(memory::Tag::Activations);
    loss = forward();
  }
  replay::check_loss(loss);
  tape->finish();
  {
    const memory::TagScope tag(memory::Tag::Workspace);
    loss.backward();
  }
  s.last = {tape->replayed_ops(), tape->evictions(), !tape->divergence().has_value(), {}};
  if (const auto& d = tape->divergence()) {
    s.last.divergence = fmt::format("operator {}: recorded {}, ran {}", d->op, d->expected, d->found);
  }
  return loss.detach();
}

}  // namespace snug
