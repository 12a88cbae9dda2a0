#include "snug/train/experiment.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/tag.h"
#include "snug/models/autocast.h"
#include "snug/plan/run/presets.h"
#include "snug/record/leaf_names.h"
#include "snug/replay/fit.h"
#include "snug/train/model_family.h"

namespace snug::train {
namespace {

/// What has to hold before anything is made.
Config prepared(const Config& config) {
  validate(config);
  if (config.train.threads > 0) at::set_num_threads(static_cast<int>(config.train.threads));
  torch::manual_seed(static_cast<std::uint64_t>(config.train.seed));
  return config;
}

std::vector<at::Tensor> trained(const torch::nn::Module& model) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& p : model.parameters()) {
    if (p.requires_grad()) parameters.push_back(p);
  }
  return parameters;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const OptimizerConfig& o, const torch::nn::Module& model) {
  return optim::optimizer_kind(o.kind).make(trained(model), o.own);
}

std::optional<c10::ScalarType> autocast_dtype(const Config& config) {
  switch (config.precision.compute) {
    case Compute::Bf16:
      return at::kBFloat16;
    case Compute::Fp32:
      break;
  }
  return std::nullopt;
}

/// Evaluation mode while it lives.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& model) : model_(model), trained_(model.is_training()) { model.eval(); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;
  ~EvaluationScope() { model_.train(trained_); }

 private:
  torch::nn::Module& model_;
  bool trained_;
};

}  // namespace

Experiment::Experiment(const Config& config)
    : config_(prepared(config)),
      task_(config, open_pretrained(config).get()),  // whose pages would count as this process's memory
      optimizer_(make_optimizer(config.optimizer, model())),
      schedule_(optim::WarmupCosine{config.optimizer.learning_rate, config.optimizer.warmup_steps, config.train.steps,
                                    config.optimizer.final_fraction}) {
  std::vector<std::pair<std::string, at::Tensor>> names;
  for (const auto& p : model().named_parameters()) names.emplace_back(p.key(), p.value());
  record::name_tensors(names);
  if (config.train.validate_every > 0 && task_.validation_batches() == 0) {
    throw UsageError(fmt::format(
        "train: train.validate_every = {}, but the validation split, {:g} of the tokens of {}, has no window of {} "
        "tokens; "
        "raise data.validation_fraction, lower model.sequence, or leave train.validate_every out",
        config.train.validate_every, config.data.validation_fraction, config.data.path, config.model.sequence));
  }
}

at::Tensor Experiment::loss(const data::Batch& batch) {
  const models::AutocastScope autocast(autocast_dtype(config_));
  return task_.loss(batch);
}

data::Batch Experiment::train_batch(std::int64_t step) const {
  const memory::TagScope tag(memory::Tag::Staging);
  return task_.train_batch(step);
}

double Experiment::update(std::int64_t step) {
  const double norm = clip_gradients();
  apply_gradients(step);
  return norm;
}

double Experiment::clip_gradients() {
  return optim::clip_gradient_norm(optimizer_->parameters(), config_.optimizer.clip_norm);
}

void Experiment::apply_gradients(std::int64_t step) {
  optimizer_->step(optim::learning_rate(schedule_, step));
  optimizer_->zero_grad();
}

replay::Rehearsal Experiment::rehearsal() {
  replay::Rehearsal rehearsal([this] {
    optim::clip_gradient_norm(optimizer_->parameters(), config_.optimizer.clip_norm);
    optimizer_->rehearse();
  });
  rehearsal.writes_gradients_alone = true;
  return rehearsal;
}

std::optional<double> Experiment::validation_loss(const std::function<void()>& between) {
  const std::int64_t batches = std::min(task_.validation_batches(), config_.train.validation_batches);
  if (batches == 0) return std::nullopt;
  const torch::NoGradGuard no_grad;
  const EvaluationScope evaluation(model());
  double sum = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    sum += loss(task_.validation_batch(i)).item<double>();
    if (between) between();
  }
  return sum / static_cast<double>(batches);
}

void warm_up(const Config& config) {
  const models::AutocastScope autocast(autocast_dtype(config));
  const ModelFamily& family = model_family(config.model.kind);
  ModelConfig tiny = tiny_config(family);
  tiny.loss = config.model.loss;
  const auto model = family.make(tiny);
  const auto optimizer = make_optimizer(config.optimizer, model->module());
  const at::Tensor tokens = torch::randint(0, 256, {2, 16});
  model->loss({tokens, tokens}).backward();
  optim::clip_gradient_norm(optimizer->parameters(), 1.0);
  optimizer->step(0);
}

BudgetRequest requested_budget(const std::string& text, const std::optional<plan::PlanFile>& file) {
  const BudgetRequest request = parse_budget(text);
  const bool none = std::holds_alternative<std::monostate>(request);
  return none && file && file->plan.budget > 0 ? BudgetRequest(file->plan.budget) : request;
}

std::optional<plan::Budget> budget_for(const BudgetRequest& request, Bytes unplanned_peak) {
  if (const Bytes* bytes = std::get_if<Bytes>(&request)) return plan::Budget::for_limit(*bytes);
  if (const Percent* percent = std::get_if<Percent>(&request)) {
    return plan::Budget::for_share(percent->value / 100.0, unplanned_peak);
  }
  return std::nullopt;
}

PlannedExperiment plan_experiment(Experiment& experiment, const std::optional<plan::PlanFile>& file) {
  auto& memory = memory::device_memory(c10::kCPU);
  const Config& config = experiment.config();
  const BudgetRequest request = requested_budget(config.memory.budget, file);
  const data::Batch sample = experiment.train_batch(0);
  const auto step = [&] { return experiment.loss(sample); };
  const Bytes* cap = std::get_if<Bytes>(&request);
  if (const Bytes total = memory::machine_memory().total; cap != nullptr && total > 0 && *cap > total) {
    throw UsageError(
        fmt::format("budget: {} is more than the {} that this machine has; give less, or leave the budget out",
                    format_bytes(*cap), format_bytes(total)));
  }
  const replay::RecordOptions options{.update = experiment.rehearsal()};
  replay::RecordedStep recorded = cap != nullptr ? replay::record_step_within(*cap, step, memory, options)
                                                 : replay::record_step(step, memory, options);
  if (file) plan::check_is_for(*file, recorded.graph);
  const double started = monotonic_seconds();
  plan::Planner planner =
      file ? plan::Planner(recorded.graph, file->plan) : plan::Planner(recorded.graph, config.memory.strategy);
  const double seconds = monotonic_seconds() - started;
  const auto budget = budget_for(request, plan::plan_none(recorded.graph).predicted_peak);
  return {std::move(recorded), std::move(planner), budget, seconds};
}

Session plan_session(Experiment& experiment, const std::optional<plan::PlanFile>& file) {
  PlannedExperiment planned = plan_experiment(experiment, file);
  return {std::move(planned.step), std::move(planned.planner), planned.budget, memory::device_memory(c10::kCPU)};
}

}  // namespace snug::train
