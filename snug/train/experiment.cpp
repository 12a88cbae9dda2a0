#include "snug/train/experiment.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/models/autocast.h"
#include "snug/models/evaluation_scope.h"
#include "snug/record/leaf_names.h"
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

}  // namespace

Experiment::Experiment(const Config& config)
    : config_(prepared(config)),
      task_(config, open_pretrained(config).get()),  // whose pages would count as this process's memory
      optimizer_(make_optimizer(config.optimizer, model())),
      schedule_{.peak = config.optimizer.learning_rate,
                .warmup_steps = config.optimizer.warmup_steps,
                .steps = config.train.steps,
                .final_fraction = config.optimizer.final_fraction} {
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

double Experiment::learning_rate(std::int64_t step) const { return schedule_.at(step); }

at::Tensor Experiment::evaluate(const data::Batch& batch) {
  const torch::NoGradGuard no_grad;
  const models::EvaluationScope evaluation(model());
  return loss(batch);
}

std::optional<data::Batch> Experiment::validation_sample() const {
  if (std::min(task_.validation_batches(), config_.train.validation_batches) == 0) return std::nullopt;
  const memory::TagScope tag(memory::Tag::Staging);
  return task_.validation_batch(0);
}

std::optional<double> Experiment::validation_loss(const std::function<void()>& between) {
  const std::int64_t batches = std::min(task_.validation_batches(), config_.train.validation_batches);
  if (batches == 0) return std::nullopt;
  double sum = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    sum += evaluate(task_.validation_batch(i)).item<double>();
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

}  // namespace snug::train
