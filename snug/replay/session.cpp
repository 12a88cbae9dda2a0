#include "snug/replay/session.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "snug/memory/held_limit.h"
#include "snug/memory/tag.h"
#include "snug/record/profiler.h"
#include "snug/record/recording.h"
#include "snug/replay/abandoned_tasks.h"
#include "snug/replay/anomaly.h"
#include "snug/replay/eviction.h"
#include "snug/replay/opaque_values.h"
#include "snug/replay/step_book.h"

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
  replay::StepBook book;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> hooked;
  std::optional<plan::Budget> budget;
  std::unique_ptr<memory::HeldLimit> limit;
  bool steps_vary = false;  // an unknown step has come up
  VerifyReplay verify = VerifyReplay::Off;
  bool detects = false;
  StepReport last;

  ~State() {
    for (const at::Tensor& p : hooked) {
      // Somebody may have put another in its place.
      const auto& hook = torch::autograd::impl::post_acc_grad_hooks(p);
      if (dynamic_cast<const TagGradient*>(hook.get()) != nullptr)
        torch::autograd::impl::set_post_acc_grad_hooks(p, nullptr);
    }
  }
};

Session::Session(replay::RecordedStep step, std::string_view strategy, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory)
    : Session(step, plan::Planner(step.graph, strategy), budget, memory) {}

Session::Session(replay::RecordedStep step, plan::Planner planner, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory) {
  state_.reset(new State{memory,
                         replay::StepBook(std::move(step.graph), std::move(planner), budget),
                         std::move(step.parameters),
                         {},
                         budget,
                         budget ? std::make_unique<memory::HeldLimit>(memory, budget->device) : nullptr,
                         false,
                         VerifyReplay::Off,
                         false,
                         {}});
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

void Session::verify_replays(VerifyReplay how) noexcept { state_->verify = how; }

void Session::detect_anomalies(bool detect) noexcept { state_->detects = detect; }

const plan::MemoryPlan& Session::plan() const { return state_->book.plan(); }
const plan::StepGraph& Session::graph() const { return state_->book.graph(); }
const plan::Planner& Session::planner() const { return state_->book.planner(); }
const Session::StepReport& Session::last_step() const { return state_->last; }

at::Tensor Session::run(const replay::Forward& forward) {
  State& s = *state_;
  const bool accumulates = std::ranges::any_of(s.parameters, [](const at::Tensor& p) { return p.grad().defined(); });
  s.book.begin(s.memory.stats(), accumulates);
  // What an unknown step takes is noted as it runs, once there is reason to expect one.
  std::optional<record::Profiler> profiler;
  const bool unexpected = !s.book.expects(accumulates);
  if (s.steps_vary || unexpected) profiler.emplace(s.memory, /*aside=*/0);
  const auto tape =
      std::make_shared<record::Tape>(record::FollowPlan{s.book.steps(accumulates)}, profiler ? &*profiler : nullptr);
  if (s.verify != VerifyReplay::Off) tape->verify_replays(s.verify);
  if (s.detects) replay::watch_operators(*tape);
  struct Detach {
    record::Tape& tape;
    ~Detach() { tape.detach_profiler(); }
  } const detach{*tape};
  const replay::Evictor evictor(tape, s.memory, replay::EvictionCost::Measured);
  at::Tensor loss;
  {
    const record::Recording recording(tape);
    const memory::TagScope tag(memory::Tag::Activations);
    loss = forward();
  }
  replay::check_loss(loss);
  tape->finish();
  if (s.detects) replay::watch_backward(loss, tape);
  {
    const memory::TagScope tag(memory::Tag::Workspace);
    replay::run_backward(loss);
  }
  s.last = {tape->replayed_ops(),
            tape->evictions(),
            !tape->divergence().has_value(),
            {},
            s.book.size(),
            replay::opaque_lines(*tape),
            false};
  at::Tensor result = loss.detach();
  if (const auto& d = tape->divergence()) {
    s.last.divergence = fmt::format("operator {}: recorded {}, ran {}", d->op, d->expected, d->found);
    s.steps_vary = true;
  } else if (const record::KnownStep* known = tape->known_step()) {
    s.book.ran(known->graph.get());
  }
  if (profiler && (unexpected || tape->divergence())) {
    // The graph of the loss ends with it; what it held is no part of the step's end.
    loss = at::Tensor();
    s.book.add(profiler->finish(*tape), accumulates);
    s.last.planned_anew = true;
    s.last.known = s.book.size();
  }
  return result;
}

}  // namespace snug
