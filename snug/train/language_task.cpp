#include "snug/train/language_task.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "snug/base/errors.h"
#include "snug/data/bos_eos.h"
#include "snug/data/libtorch_headers.h"
#include "snug/data/tokenize.h"
#include "snug/models/lora.h"
#include "snug/state/manifest.h"

namespace snug::train {
namespace {

data::TokenCorpus make_corpus(const Config& config, const Pretrained* pretrained, const data::Tokenizer& tokenizer,
                              std::int64_t vocabulary, std::vector<std::string>& notes) {
  const std::filesystem::path path =
      config.data.path == data::kLibTorchHeaders ? data::libtorch_headers() : std::filesystem::path(config.data.path);
  if (data::is_token_file(path)) return data::TokenFile::open(path, vocabulary);
  data::TextCorpus text = data::TextCorpus::open(path);
  if (!text.left_out().empty())
    notes.push_back(fmt::format("data: of {} left out: {}", config.data.path, text.left_out()));
  if (tokenizer.of_bytes()) return text;
  data::TokenizeOptions options;
  options.threads = at::get_num_threads();
  const data::BosEos added = data::bos_eos_of(tokenizer);
  options.before = added.bos;
  options.after = added.eos ? added.eos : end_of_documents(config, pretrained, tokenizer);
  const auto encode_piece = [&](std::string_view piece) {
    std::vector<data::TokenId> ids = tokenizer.encode(piece);
    if (added.eos) ids.pop_back();
    if (added.bos) ids.erase(ids.begin());
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

/// Rows of one document are windows of a text.
void refuse_one_document(const data::TokenCorpus& corpus, const std::string& path) {
  const std::span<const std::int64_t> starts = corpus.documents();
  std::int64_t with_tokens = 0;
  for (std::size_t i = 0; i < starts.size() && with_tokens < 2; ++i) {
    if (starts[i] < (i + 1 < starts.size() ? starts[i + 1] : corpus.size())) ++with_tokens;
  }
  if (with_tokens > 1) return;
  throw UsageError(
      fmt::format("data: data.packing = \"documents\" keeps documents apart, and {} is one; name a folder of texts or "
                  "tokens with an .idx of Megatron's beside them, or set data.packing = \"none\"",
                  path));
}

/// What an adapter from files is made with beside its weights, which a state has. Of a new one the configuration says.
std::string settings_of_adapter(const Config& config, const torch::nn::Module& model) {
  const models::LoraOptions* const lora = config.lora.adapter.empty() ? nullptr : models::lora_options(model);
  if (lora == nullptr) return "";
  return fmt::format(", rank {}, factor {}, dropout {}", lora->rank, lora->factor(), lora->dropout);
}

Dataset make_dataset(const Config& config, const Pretrained* pretrained, const data::Tokenizer& tokenizer,
                     std::int64_t vocabulary, std::string& fingerprint, std::vector<std::string>& notes) {
  data::TokenCorpus corpus = make_corpus(config, pretrained, tokenizer, vocabulary, notes);
  fingerprint += fingerprint_of(corpus);
  corpus.check_vocabulary(vocabulary);
  const auto seed = static_cast<std::uint64_t>(config.data.seed < 0 ? config.train.seed : config.data.seed);
  if (config.data.packing == Packing::Documents) {
    refuse_one_document(corpus, config.data.path);
    data::PackedDatasetOptions options{.batch = config.train.batch, .sequence = config.model.sequence, .seed = seed};
    return data::PackedDataset(std::move(corpus), options);
  }
  return data::TextDataset(std::move(corpus),
                           {config.train.batch, config.model.sequence, config.data.validation_fraction, seed});
}

}  // namespace

LanguageTask::LanguageTask(const Config& config, const Pretrained* pretrained)
    : fingerprint_(pretrained != nullptr ? pretrained->fingerprint() : ""),
      ends_(pretrained != nullptr ? pretrained->ends() : std::vector<data::TokenId>()),
      begin_(pretrained != nullptr ? pretrained->begin() : std::nullopt),
      model_(make_model(config, pretrained)),
      tokenizer_(make_tokenizer(config, pretrained)),
      dataset_(make_dataset(config, pretrained, *tokenizer_, model_->vocabulary(), fingerprint_, notes_)),
      batch_(config.train.batch),
      tokens_per_step_(config.train.batch * config.model.sequence) {
  fingerprint_ += settings_of_adapter(config, model_->module());
  const bool validates = config.train.validation_batches > 0 && config.data.validation_fraction > 0;
  if (validates && std::holds_alternative<data::TextDataset>(dataset_) && validation_batches() == 0) {
    notes_.push_back(fmt::format(
        "data: nothing is validated, as {:g} of {} has no window of {} tokens; raise data.validation_fraction, lower "
        "model.sequence, or set train.validation_batches = 0",
        config.data.validation_fraction, config.data.path, config.model.sequence));
  }
}

data::Batch LanguageTask::train_batch(std::int64_t step) const {
  return std::visit([&](const auto& dataset) { return dataset.train_batch(step); }, dataset_);
}

double LanguageTask::steps_per_epoch() const {
  const auto* const text = std::get_if<data::TextDataset>(&dataset_);
  const std::int64_t samples = text != nullptr ? text->train_windows() : std::get<data::PackedDataset>(dataset_).rows();
  return static_cast<double>(samples) / static_cast<double>(batch_);
}

std::int64_t LanguageTask::validation_batches() const {
  const auto* const text = std::get_if<data::TextDataset>(&dataset_);
  if (text == nullptr || text->validation_windows() == 0) return 0;
  return std::max<std::int64_t>(1, text->validation_windows() / batch_);
}

data::Batch LanguageTask::validation_batch(std::int64_t i) const {
  return std::get<data::TextDataset>(dataset_).validation_batch(i);
}

}  // namespace snug::train
