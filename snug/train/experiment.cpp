#include "snug/train/experiment.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/data/libtorch_headers.h"
#include "snug/data/tokenize.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/tag.h"
#include "snug/models/autocast.h"
#include "snug/models/gpt.h"
#include "snug/plan/run/presets.h"
#include "snug/record/leaf_names.h"
#include "snug/replay/fit.h"
#include "snug/state/manifest.h"

namespace snug::train {
namespace {

/// What has to hold before anything is made.
Config prepared(const Config& config) {
  validate(config);
  if (config.train.threads > 0) at::set_num_threads(static_cast<int>(config.train.threads));
  torch::manual_seed(static_cast<std::uint64_t>(config.train.seed));
  return config;
}

/// What a tokenizer puts around every text, which belongs around documents, and not around the pieces of long ones.
struct Around {
  std::optional<data::TokenId> before, after;
};

Around tokens_around(const data::Tokenizer& tokenizer) {
  const std::vector<data::TokenId> bare = data::encode(tokenizer, ""), letter = data::encode(tokenizer, "a");
  for (const std::size_t front : {std::size_t{1}, std::size_t{0}}) {
    if (front > bare.size() || bare.size() - front > 1 || letter.size() <= bare.size()) continue;
    const bool begins = std::equal(bare.begin(), bare.begin() + static_cast<std::ptrdiff_t>(front), letter.begin());
    const bool ends = bare.size() == front || bare.back() == letter.back();
    if (!begins || !ends) continue;
    return {.before = front == 1 ? std::optional(bare.front()) : std::nullopt,
            .after = bare.size() > front ? std::optional(bare.back()) : std::nullopt};
  }
  throw UsageError(fmt::format(
      "data: the tokenizer puts {} tokens around every text; one in front and one behind are known", bare.size()));
}

data::TokenCorpus make_corpus(const Config& config, const std::optional<Pretrained>& pretrained,
                              const data::Tokenizer& tokenizer) {
  const std::filesystem::path path =
      config.data.path == data::kLibTorchHeaders ? data::libtorch_headers() : std::filesystem::path(config.data.path);
  if (data::is_token_file(path)) return data::TokenFile::open(path);
  data::TextCorpus text = data::TextCorpus::open(path);
  if (std::holds_alternative<data::ByteTokenizer>(tokenizer)) return text;
  data::TokenizeOptions options;
  options.threads = at::get_num_threads();
  const Around around = tokens_around(tokenizer);
  options.before = around.before;
  options.after = around.after ? around.after : end_of_documents(config, pretrained, tokenizer);
  const auto encode_piece = [&](std::string_view piece) {
    std::vector<data::TokenId> ids = data::encode(tokenizer, piece);
    if (around.after) ids.pop_back();
    if (around.before) ids.erase(ids.begin());
    return ids;
  };
  return data::tokenize(text, encode_piece, options);
}

/// Its length, and runs of tokens from all over it.
std::string fingerprint_of(const data::TokenCorpus& corpus) {
  constexpr std::int64_t kSamples = 256, kRun = 64;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(std::min(kRun, corpus.size())));
  std::string sampled;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    corpus.copy((corpus.size() - static_cast<std::int64_t>(tokens.size())) / kSamples * i, tokens);
    sampled.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(tokens[0]));
  }
  return fmt::format("{} tokens, {}", corpus.size(), state::hash_of(sampled));
}

Dataset make_dataset(const Config& config, const std::optional<Pretrained>& pretrained,
                     const data::Tokenizer& tokenizer, std::int64_t vocabulary, std::string& fingerprint) {
  data::TokenCorpus corpus = make_corpus(config, pretrained, tokenizer);
  fingerprint += fingerprint_of(corpus);
  corpus.check_vocabulary(vocabulary);
  const auto seed = static_cast<std::uint64_t>(config.train.seed);
  if (config.data.packing == Packing::Documents) {
    data::PackedDatasetOptions options{.batch = config.train.batch, .sequence = config.model.sequence, .seed = seed};
    return data::PackedDataset(std::move(corpus), options);
  }
  return data::TextDataset(std::move(corpus),
                           {config.train.batch, config.model.sequence, config.data.validation_fraction, seed});
}

std::vector<at::Tensor> trained(const torch::nn::Module& model) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& p : model.parameters()) {
    if (p.requires_grad()) parameters.push_back(p);
  }
  return parameters;
}

optim::AdamWOptions optimizer_options(const OptimizerConfig& o) {
  return {o.learning_rate, o.beta1, o.beta2, o.epsilon, o.weight_decay};
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

Experiment::Experiment(const Config& config) : Experiment{prepared(config), open_pretrained(config)} {}

// The files are let go of with `pretrained`: their pages would count as this process's memory.
Experiment::Experiment(const Config& config, const std::optional<Pretrained>& pretrained)
    : config_(config),
      fingerprint_(pretrained ? pretrained->fingerprint() : ""),
      ends_(pretrained ? pretrained->ends() : std::vector<data::TokenId>()),
      model_(make_model(config, pretrained)),
      tokenizer_(make_tokenizer(config, pretrained)),
      dataset_(make_dataset(config, pretrained, tokenizer_, vocabulary_of(model_), fingerprint_)),
      optimizer_(trained(module_of(model_)), optimizer_options(config.optimizer)),
      schedule_{config.optimizer.learning_rate, config.optimizer.warmup_steps, config.train.steps,
                config.optimizer.final_fraction} {
  std::vector<std::pair<std::string, at::Tensor>> names;
  for (const auto& p : model().named_parameters()) names.emplace_back(p.key(), p.value());
  record::name_tensors(names);
  const auto* const text = std::get_if<data::TextDataset>(&dataset_);
  if (text != nullptr && config.train.validate_every > 0 && text->validation_windows() == 0) {
    throw UsageError(fmt::format(
        "train: train.validate_every = {}, but the validation split, {:g} of the tokens of {}, has no window of {} "
        "tokens; "
        "raise data.validation_fraction, lower model.sequence, or leave train.validate_every out",
        config.train.validate_every, config.data.validation_fraction, config.data.path, config.model.sequence));
  }
}

at::Tensor Experiment::loss(const data::Batch& batch) {
  const models::AutocastScope autocast(autocast_dtype(config_));
  return loss_of(model_, batch);
}

data::Batch Experiment::train_batch(std::int64_t step) const {
  const memory::TagScope tag(memory::Tag::Staging);
  return std::visit([&](const auto& dataset) { return dataset.train_batch(step); }, dataset_);
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

replay::Rehearsal Experiment::rehearsal() {
  replay::Rehearsal rehearsal([this] {
    optim::clip_gradient_norm(optimizer_.parameters(), config_.optimizer.clip_norm);
    optimizer_.rehearse();
  });
  rehearsal.writes_gradients_alone = true;
  return rehearsal;
}

std::optional<double> Experiment::validation_loss(const std::function<void()>& between) {
  const auto* const text = std::get_if<data::TextDataset>(&dataset_);
  if (text == nullptr || text->validation_windows() == 0 || config_.train.validation_batches == 0) return std::nullopt;
  const torch::NoGradGuard no_grad;
  const EvaluationScope evaluation(model());
  const std::int64_t available = std::max<std::int64_t>(1, text->validation_windows() / config_.train.batch);
  const std::int64_t batches = std::min(available, config_.train.validation_batches);
  double sum = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    sum += loss(text->validation_batch(i)).item<double>();
    if (between) between();
  }
  return sum / static_cast<double>(batches);
}

std::int64_t Experiment::tokens_per_step() const { return config_.train.batch * config_.model.sequence; }

void warm_up(const Config& config) {
  const models::AutocastScope autocast(autocast_dtype(config));
  const at::Tensor tokens = torch::randint(0, 256, {2, 16});
  const auto run = [&](auto model) {
    optim::AdamW optimizer(model->parameters(), optimizer_options(config.optimizer));
    model->loss(tokens, tokens).backward();
    optim::clip_gradient_norm(optimizer.parameters(), 1.0);
    optimizer.step(0);
  };
  switch (config.model.kind) {
    case ModelKind::Llama: {
      models::LlamaOptions tiny{
          .layers = 1, .width = 32, .inner_width = 64, .heads = 2, .key_heads = 1, .vocabulary = 256};
      tiny.sequence = 16;
      tiny.rotary.width = 16;
      tiny.loss = vocabulary_loss(config.model);
      run(models::Llama(tiny));
      break;
    }
    case ModelKind::Gpt:
      run(models::Gpt(models::GptOptions{.blocks = 1,
                                         .width = 32,
                                         .heads = 2,
                                         .sequence = 16,
                                         .vocabulary = 256,
                                         .dropout = 0.1,
                                         .loss = vocabulary_loss(config.model)}));
      break;
  }
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
