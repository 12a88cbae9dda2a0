#include "snug/train/experiment.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <span>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/memory/tag.h"
#include "snug/models/autocast.h"
#include "snug/models/evaluation_scope.h"
#include "snug/models/weights.h"
#include "snug/optim/block_norms.h"
#include "snug/parallel/bucket_layout.h"
#include "snug/plan/run/stage_cut.h"
#include "snug/record/leaf_names.h"
#include "snug/train/micro_batches.h"
#include "snug/train/model_family.h"
#include "snug/train/run_device.h"

namespace snug::train {
namespace {

/// What has to hold before anything is made.
Config prepared(const Config& config) {
  validate(config);
  if (config.train.threads > 0) at::set_num_threads(static_cast<int>(config.train.threads));
  torch::manual_seed(static_cast<std::uint64_t>(config.train.seed));
  Config resolved = config;
  resolved.precision.compute = computed_in(config);  // which another machine may not have
  return resolved;
}

optim::Parameters trained_of(const torch::nn::Module& model) {
  optim::Parameters trained{};
  for (const auto& p : model.named_parameters()) {
    if (!p.value().requires_grad()) continue;
    trained.tensors.push_back(p.value());
    trained.names.push_back(p.key());
  }
  return trained;
}

// What belongs to blocks of a parameter is whole in one shard.
static_assert(parallel::kShardUnit % optim::kNormBlock == 0 && parallel::kShardUnit % optim::kStateBlock == 0);

/// This process's parts of them.
optim::Parameters shards_of(const optim::Parameters& trained, const std::vector<parallel::Shard>& shards) {
  optim::Parameters parts{};
  parts.names_elsewhere = trained.names;
  for (const parallel::Shard& shard : shards) {
    parts.tensors.push_back(shard.tensor);
    parts.names.push_back(trained.names[shard.index]);
    parts.parts.push_back({shard.of, trained.part(shard.index).index, shard.first});
  }
  return parts;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config, optim::Parameters trained) {
  const OptimizerConfig& o = config.optimizer;
  trained.rules = optim::parse_group_rules(o.groups);
  if (config.precision.updates == Updates::Stochastic)
    trained.few_bits = optim::StochasticRounding{static_cast<std::uint64_t>(config.train.seed)};
  return optim::optimizer_kind(o.kind).make(trained, o.own);
}

optim::Schedule make_schedule(const Config& config) {
  const OptimizerConfig& o = config.optimizer;
  const auto decay = [&]() -> optim::Decay {
    switch (o.schedule) {
      case LearningRate::Constant:
        return optim::decays::Constant{};
      case LearningRate::Linear:
        return optim::decays::Linear{o.final_fraction};
      case LearningRate::Wsd:
        return optim::decays::StableThenLinear{o.decay_steps, o.final_fraction};
      case LearningRate::Cosine:
        break;
    }
    return optim::decays::Cosine{o.final_fraction};
  };
  return {.peak = o.learning_rate, .warmup_steps = o.warmup_steps, .steps = config.train.steps, .decay = decay()};
}

optim::GradScalerOptions scaling(const Config& config) {
  const PrecisionConfig& p = config.precision;
  return {.init_scale = p.init_scale,
          .growth_factor = p.growth_factor,
          .backoff_factor = p.backoff_factor,
          .growth_interval = p.growth_interval,
          .enabled = computed_in(config) == Compute::Fp16};
}

double order_of(NormOrder order) {
  switch (order) {
    case NormOrder::Sum:
      return 1;
    case NormOrder::Largest:
      return std::numeric_limits<double>::infinity();
    case NormOrder::Euclidean:
      break;
  }
  return 2;
}

std::optional<c10::ScalarType> autocast_dtype(const Config& config) {
  switch (computed_in(config)) {
    case Compute::Bf16:
      return at::kBFloat16;
    case Compute::Fp16:
      return at::kHalf;
    case Compute::Fp32:
    case Compute::Auto:
      break;
  }
  return std::nullopt;
}

}  // namespace

Experiment::Experiment(const Config& config, Team team)
    : config_(prepared(config)),
      team_(std::move(team)),
      device_(device_of(config)),
      is_current_(device_),
      tiers_(std::make_shared<memory::Tiers>(memory::TierBudgets{.host = plan::limit_of(config.memory.host_budget),
                                                                 .disk = plan::limit_of(config.memory.disk_budget)})),
      task_(config, open_pretrained(config).get()),  // whose pages would count as this process's memory
      schedule_(make_schedule(config)),
      scaler_(scaling(config)) {
  optim::Parameters trained = trained_of(model());
  for (const at::Tensor& one : model().parameters()) elements_.all += one.numel();
  for (const at::Tensor& one : trained.tensors) elements_.trained += one.numel();
  if (team_.size() > 1) join_team(trained);
  trained_names_ = trained.names;
  optimizer_ = make_optimizer(config, std::move(trained));
  if (scaler_.options().enabled) task_.model().expect_loss_scale(scaler_.scale_tensor());
  std::vector<std::pair<std::string, at::Tensor>> names;
  for (const auto& p : model().named_parameters()) names.emplace_back(p.key(), p.value());
  record::name_tensors(names);
  if (config.memory.weights == KeptIn::Streamed || config.memory.optimizer == KeptIn::Streamed) {
    if (!streamed_) streamed_ = std::make_shared<StreamedTensors>(StreamOptions{.device = device_}, tiers_);
    stream_again();
  }
  if (team_.size() > 1) draw_apart(0);
  if (config.train.validate_every > 0 && task_.validation_batches() == 0) {
    throw UsageError(fmt::format(
        "train: train.validate_every = {}, but the validation split, {:g} of the tokens of {}, has no window of {} "
        "tokens; "
        "raise data.validation_fraction, lower model.sequence, or leave train.validate_every out",
        config.train.validate_every, config.data.validation_fraction, config.data.path, config.model.sequence));
  }
}

void Experiment::join_team(optim::Parameters& trained) {
  team_.copy_from_first(trained.tensors);  // the others come from files, or from the seed
  const memory::TagScope tag(memory::Tag::Weights);
  const models::CausalLmImpl::Work work = task_.model().work();  // of the whole, the same in all
  if (team_.layer_group()) {
    in_parts_ = task_.model().divide({.group = team_.layer_group(), .between = team_.layout().between});
    memory().release_cached();
  } else if (team_.sequence_group()) {
    in_parts_ = task_.model().divide_sequences(team_.sequence_group(), team_.layout().context_by);
  }
  if (team_.pipeline()) keep_stages(work, trained);
  if (config_.parallel.shard == ShardOf::Parameters) {
    streamed_ = std::make_shared<StreamedTensors>(StreamOptions{.device = device_}, tiers_);
    std::vector<at::Tensor> alike = models::weights_of(model());  // in the same processes
    if (team_.layer_group())
      std::erase_if(alike, [&](const at::Tensor& one) { return models::is_among(in_parts_.summands, one); });
    divided_ = team_.divide(alike, *streamed_, config_.memory.weights);
    memory().release_cached();
  }
  std::function<void(const at::Tensor&)> arrived;
  if (config_.memory.weights == KeptIn::Streamed)
    arrived = [streamed = streamed_](const at::Tensor& shard) { streamed->take_gradient(shard); };
  together_ = team_.gradients(trained.tensors, {in_parts_.summands, shared_, in_parts_.divided}, config_, divided_,
                              std::move(arrived));
  if (is_sharded()) {
    std::vector<std::string> elsewhere = std::move(trained.names_elsewhere);
    trained = shards_of(trained, together_->shards());
    if (!elsewhere.empty()) trained.names_elsewhere = std::move(elsewhere);
  }
  other_parts_ = other_parts_of(trained);
  if (has_part_of_state()) scaler_.agree_with(other_parts_);
}

optim::OtherParts Experiment::other_parts_of(const optim::Parameters& trained) const {
  if (!has_part_of_state()) return {};
  optim::OtherParts others = is_sharded() ? team_.all_shards() : team_.parts_of_replica();
  if (parameter_parts().empty()) return others;
  // What is whole in each process of the layers' group counts in its first, and what two stages share in the first of
  // them; but shards are of all that have it.
  const bool is_first = !team_.layer_group() || team_.layer_group()->rank() == 0,
             begins = !team_.pipeline() || team_.pipeline()->rank() == 0;
  std::vector<bool> counts;
  for (std::size_t i = 0; i < trained.tensors.size(); ++i) {
    const at::Tensor of = trained.part(i).whole;
    const bool is_divided = models::part_of(in_parts_.divided, of) != nullptr,
               is_summand = models::is_among(in_parts_.summands, of), is_shared = models::is_among(shared_, of);
    counts.push_back((is_first || is_divided || (is_sharded() && is_summand)) &&
                     (begins || is_sharded() || !is_shared));
  }
  others.counts = [counts = std::move(counts)](std::size_t i) { return counts[i]; };
  return others;
}

void Experiment::keep_stages(const models::CausalLmImpl::Work& work, optim::Parameters& trained) {
  const plan::PipelineSchedule schedule = plan::pipeline_schedule_from(config_.parallel.schedule);
  const std::shared_ptr<parallel::ProcessGroup> group = team_.pipeline();
  blocks_by_stage_ = plan::cut_into_stages(work.blocks, group->size() * plan::chunks_of(schedule), 0, work.behind);
  models::ModelInStages found =
      task_.model().keep_stages(blocks_by_stage_, stages_at(group->rank(), group->size(), schedule));
  memory().release_cached();
  trained.names_elsewhere = trained.names;
  optim::Parameters here{};
  for (std::size_t i = 0; i < trained.tensors.size(); ++i) {
    if (!trained.tensors[i].requires_grad()) continue;  // others have it
    here.tensors.push_back(trained.tensors[i]);
    here.names.push_back(trained.names[i]);
    here.parts.push_back({trained.tensors[i], i, 0});
  }
  trained.tensors = std::move(here.tensors);
  trained.names = std::move(here.names);
  trained.parts = std::move(here.parts);
  shared_ = std::move(found.shared);
  for (models::ParameterPart& part : found.elsewhere) {
    if (models::part_of(in_parts_.divided, part.parameter) == nullptr) in_parts_.divided.push_back(std::move(part));
  }
  stages_ = std::make_unique<StagedModel>(
      group, schedule, [this](int stage, const at::Tensor& input, const MicroBatch& micro) {
        const models::AutocastScope autocast(autocast_dtype(config_), device_.type(), models::WeightCasts::Dropped);
        return task_.model().run_stage(stage, input, team_.part_of_sequences(micro.batch));
      });
}

std::vector<at::Tensor> Experiment::step_in_stages(
    const std::vector<MicroBatch>& micros,
    const std::function<at::Tensor(const at::Tensor& loss, const MicroBatch& micro)>& weigh) {
  std::vector<at::Tensor> losses;
  {
    const TeamGradients::Accumulating alone(*together_);
    losses = stages_->step(micros, weigh);
  }
  together_->hand_in();
  return losses;
}

void Experiment::add_up_copies(parallel::Reduction::Purpose purpose) {
  if (is_sharded()) together_->add_up_copies(purpose);
}

void Experiment::gather_weights(parallel::Reduction::Purpose purpose) {
  if (!is_sharded()) return;
  const bool changed = has_sharded_weights() && purpose == parallel::Reduction::Purpose::Sums;
  if (changed) streamed_->forget_copies();  // shards that are streamed are written back before others may ask for them
  together_->gather(purpose);
  if (changed) streamed_->forget_copies();  // what has been fetched of those that had not been updated
}

void Experiment::draw_apart(std::int64_t update) {
  if (team_.drawer() == 0) return;  // what one process does
  const std::array<std::int64_t, 3> of = {config_.train.seed, team_.drawer(), update};
  torch::manual_seed(hash_64(std::as_bytes(std::span(of))));
}

void Experiment::stream_again() {
  if (!streamed_) return;
  const std::vector<at::Tensor> kept = optimizer_->state();
  const auto trains = [](const at::Tensor& p) { return p.requires_grad(); };
  const auto is_counter = [](const at::Tensor& one) { return one.numel() <= 1; };
  if (config_.memory.optimizer == KeptIn::Streamed && std::ranges::all_of(kept, is_counter) &&
      std::ranges::any_of(model().parameters(), trains)) {
    throw UsageError(
        fmt::format("configuration: memory.optimizer = \"streamed\", and optimizer.kind = \"{}\" keeps nothing as it "
                    "is set; leave it out",
                    config_.optimizer.kind));
  }
  // Whose shards have gone when they were made.
  if (config_.memory.weights == KeptIn::Streamed && !has_sharded_weights()) streamed_->add(models::weights_of(model()));
  streamed_->add(kept);
  memory().release_cached();
}

at::Tensor Experiment::loss(const data::Batch& batch) {
  // Decoders cast each weight once.
  const models::AutocastScope autocast(autocast_dtype(config_), device_.type(), models::WeightCasts::Dropped);
  return task_.loss(team_.part_of_sequences(batch));
}

data::Batch Experiment::train_batch(std::int64_t step) const {
  const memory::TagScope tag(memory::Tag::Staging);
  return to_device(task_.train_batch(step));
}

data::Batch Experiment::to_device(data::Batch batch) const {
  for (at::Tensor* tensor : tensors_of(batch)) *tensor = tensor->to(device_);
  return batch;
}

double Experiment::learning_rate(std::int64_t update) const { return schedule_.at(update); }

optim::Clipping Experiment::clipping() const {
  const OptimizerConfig& o = config_.optimizer;
  if (o.clip_value > 0) return optim::ClipValue{o.clip_value};
  if (o.clip_norm > 0) return optim::ClipNorm{o.clip_norm, order_of(o.clip_norm_order)};
  return optim::NoClipping{};
}

at::Tensor Experiment::evaluate(const data::Batch& batch) {
  const torch::NoGradGuard no_grad;
  const models::EvaluationScope evaluation(model());
  const std::vector<MicroBatch> micros = micro_batches(batch, team_.replicas() * config_.train.accumulate);
  std::vector<at::Tensor> losses;
  if (is_in_stages()) {
    losses = evaluate_in_stages(micros);
    if (losses.empty()) return at::zeros({}, at::TensorOptions(device_));  // another process has them
  }
  at::Tensor sum;
  for (std::size_t i = 0; i < micros.size(); ++i) {
    const MicroBatch& micro = micros[i];
    const at::Tensor part = is_in_stages() ? losses[i] : loss(micro.batch);
    sum = micro.share == 1 ? part : sum.defined() ? sum + part * micro.share : part * micro.share;
  }
  return sum;
}

std::optional<data::Batch> Experiment::validation_sample() const {
  if (std::min(task_.validation_batches(), config_.train.validation_batches) == 0) return std::nullopt;
  const memory::TagScope tag(memory::Tag::Staging);
  return to_device(task_.validation_batch(0));
}

std::optional<double> Experiment::validation_loss(const std::function<void()>& between) {
  const std::int64_t batches = std::min(task_.validation_batches(), config_.train.validation_batches);
  if (batches == 0) return std::nullopt;
  std::vector<double> losses(static_cast<std::size_t>(batches));
  const std::int64_t replicas = team_.replicas();
  for (std::int64_t i = team_.replica(); i < batches; i += replicas) {
    if (streamed_) streamed_->next_step(replay::StepKind::Evaluation);
    losses[static_cast<std::size_t>(i)] = evaluate(to_device(task_.validation_batch(i))).item<double>();
    if (between) between();
  }
  const std::vector<double> all = team_.gather(losses);
  double sum = 0;  // in the order of one process
  for (std::int64_t i = 0; i < batches; ++i)
    sum += all[static_cast<std::size_t>(team_.teller_of(static_cast<int>(i % replicas)) * batches + i)];
  return sum / static_cast<double>(batches);
}

void warm_up(const Config& config) {
  const c10::Device device = device_of(config);
  const models::AutocastScope autocast(autocast_dtype(config), device.type());
  const ModelFamily& family = model_family(config.model.kind);
  ModelConfig tiny = tiny_config(family);
  tiny.loss = config.model.loss;
  const auto model = family.make(tiny);
  model->module().to(device);
  Config of_all = config;
  // By the names of the model itself.
  of_all.optimizer.groups.clear();
  of_all.optimizer.own = own_defaults(optim::optimizer_kinds());
  const auto optimizer = make_optimizer(of_all, trained_of(model->module()));
  const at::Tensor tokens = torch::randint(0, 256, {2, 16}).to(device);
  model->loss({tokens, tokens}).backward();
  optim::clip_gradients(optimizer->parameters(), optim::ClipNorm{});
  optimizer->step(0);
}

}  // namespace snug::train
