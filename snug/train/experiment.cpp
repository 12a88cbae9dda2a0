#include "snug/train/experiment.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/data/libtorch_headers.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/tag.h"
#include "snug/models/autocast.h"
#include "snug/plan/presets.h"
#include "snug/record/leaf_names.h"
#include "snug/replay/fit.h"

namespace snug::train {
namespace {

models::Gpt make_model(const Config& config) {
  validate(config);
  if (config.train.threads > 0) at::set_num_threads(static_cast<int>(config.train.threads));
  torch::manual_seed(static_cast<std::uint64_t>(config.train.seed));
  const memory::TagScope tag(memory::Tag::Weights);
  const ModelConfig& m = config.model;
  return models::Gpt(models::GptOptions{m.blocks, m.width, m.heads, m.sequence, m.vocabulary, m.dropout});
}

data::TextDataset make_dataset(const Config& config) {
  const std::filesystem::path path =
      config.data.path == data::kLibTorchHeaders ? data::libtorch_headers() : std::filesystem::path(config.data.path);
  return {data::TextCorpus::open(path),
          {config.train.batch, config.model.sequence, config.data.validation_fraction,
           static_cast<std::uint64_t>(config.train.seed)}};
}

optim::AdamWOptions optimizer_options(const OptimizerConfig& o) {
  return {o.learning_rate, o.beta1, o.beta2, o.epsilon, o.weight_decay};
}

std::optional<c10::ScalarType> autocast_dtype(const Config& config) {
  return config.precision.compute == "bf16" ? std::optional(at::kBFloat16) : std::nullopt;
}

}  // namespace

Experiment::Experiment(const Config& config)
    : config_(config),
      model_(make_model(config)),
      dataset_(make_dataset(config)),
      optimizer_(model_->parameters(), optimizer_options(config.optimizer)),
      schedule_{config.optimizer.learning_rate, config.optimizer.warmup_steps, config.train.steps,
                config.optimizer.final_fraction} {
  std::vector<std::pair<std::string, at::Tensor>> names;
  for (const auto& p : model_->named_parameters()) names.emplace_back(p.key(), p.value());
  record::name_tensors(names);
}

at::Tensor Experiment::loss(const data::Batch& batch) {
  const models::AutocastScope autocast(autocast_dtype(config_));
  return model_->loss(batch.input, batch.target);
}

data::Batch Experiment::train_batch(std::int64_t step) const {
  const memory::TagScope tag(memory::Tag::Staging);
  return dataset_.train_batch(step);
}

double Experiment::update(std::int64_t step) {
  const double norm = clip_gradients();
  apply_gradients(step);
  return norm;
}

double Experiment::clip_gradients() {
  return optim::clip_gradient_norm(optimizer_.parameters(), config_.optimizer.clip_norm);
}

void Experiment::apply_gradients(std::int64_t step) {
  optimizer_.step(schedule_.at(step));
  optimizer_.zero_grad();
}

void Experiment::rehearse_update() {
  optim::clip_gradient_norm(optimizer_.parameters(), config_.optimizer.clip_norm);
  optimizer_.rehearse();
}

std::optional<double> Experiment::validation_loss() {
  if (dataset_.validation_windows() == 0) return std::nullopt;
  const torch::NoGradGuard no_grad;
  model_->eval();
  const std::int64_t available = std::max<std::int64_t>(1, dataset_.validation_windows() / config_.train.batch);
  const std::int64_t batches = std::min(available, config_.train.validation_batches);
  double sum = 0;
  for (std::int64_t i = 0; i < batches; ++i) sum += loss(dataset_.validation_batch(i)).item<double>();
  model_->train();
  return sum / static_cast<double>(batches);
}

std::int64_t Experiment::tokens_per_step() const { return config_.train.batch * config_.model.sequence; }

void warm_up(const Config& config) {
  models::Gpt tiny(
      models::GptOptions{.blocks = 1, .width = 32, .heads = 2, .sequence = 16, .vocabulary = 256, .dropout = 0.1});
  optim::AdamW optimizer(tiny->parameters(), optimizer_options(config.optimizer));
  const at::Tensor tokens = torch::randint(0, 256, {2, 16});
  const models::AutocastScope autocast(autocast_dtype(config));
  tiny->loss(tokens, tokens).backward();
  optim::clip_gradient_norm(optimizer.parameters(), 1.0);
  optimizer.step(0);
}

BudgetRequest requested_budget(const std::string& text, const std::optional<plan::PlanFile>& file) {
  const BudgetRequest request = parse_budget(text);
  const bool none = std::holds_alternative<std::monostate>(request);
  return none && file && file->plan.budget > 0 ? BudgetRequest(file->plan.budget) : request;
}

std::optional<plan::Budget> budget_for(const BudgetRequest& request, Bytes unplanned_peak) {
  if (const Bytes* bytes = std::get_if<Bytes>(&request)) return plan::Budget::for_limit(*bytes);
  if (const Percent* percent = std::get_if<Percent>(&request)) {
    return plan::Budget::for_limit(static_cast<Bytes>(percent->value / 100.0 * static_cast<double>(unplanned_peak)));
  }
  return std::nullopt;
}

PlannedExperiment plan_experiment(Experiment& experiment, const std::optional<plan::PlanFile>& file) {
  auto& memory = memory::device_memory(c10::kCPU);
  const Config& config = experiment.config();
  const BudgetRequest request = requested_budget(config.memory.budget, file);
  const data::Batch sample = experiment.train_batch(0);
  const auto step = [&] { return experiment.loss(sample); };
  const auto update = [&] { experiment.rehearse_update(); };
  const Bytes* cap = std::get_if<Bytes>(&request);
  if (const Bytes total = memory::machine_memory().total; cap != nullptr && total > 0 && *cap > total) {
    throw UsageError(
        fmt::format("budget: {} is more than the {} that this machine has; give less, or leave the budget out",
                    format_bytes(*cap), format_bytes(total)));
  }
  replay::RecordedStep recorded = cap != nullptr ? replay::record_step_within(*cap, step, memory, update)
                                                 : replay::record_step(step, memory, update);
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
