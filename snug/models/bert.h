#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "snug/models/dense.h"
#include "snug/models/linear.h"
#include "snug/models/task.h"
#include "snug/models/vocabulary_loss.h"

namespace snug::models {

struct BertOptions {
  std::int64_t layers = 12;
  std::int64_t width = 768;         ///< a multiple of heads
  std::int64_t inner_width = 3072;  ///< of the feed-forward part
  std::int64_t heads = 12;
  std::int64_t vocabulary = 30522;
  std::int64_t sequence = 512;   ///< longest input
  std::int64_t token_types = 2;  ///< the segments that an input may have
  std::int64_t padding = 0;      ///< the token that fills up; as an input its vector gets no gradient
  double norm_epsilon = 1e-12;
  double dropout = 0.1;            ///< of the embedding, of what both parts of a layer add, and before the classifier
  double attention_dropout = 0.1;  ///< of attention's probabilities; above 0 it rules out the fused kernels on the CPU
  VocabularyLoss loss = PlainLoss{};  ///< of BertMaskedLm
};

/// Options of a released model by its name: "bert-base-uncased", "bert-base-cased", "bert-base-chinese",
/// "bert-base-multilingual-cased", "bert-large-uncased", "bert-large-cased". Throws UsageError for others, with the
/// names there are.
BertOptions bert_options(std::string_view name);
std::vector<std::string> bert_names();

struct BertInput {
  at::Tensor tokens;            ///< int64 (batch, sequence)
  at::Tensor token_types = {};  ///< int64, the same shape; undefined: all 0
  at::Tensor mask = {};  ///< of any type, the same shape: 0 where nothing attends to; undefined: nowhere. A text of
                         ///< nothing else attends to nothing, where transformers has it attend to all
};

enum class BertPooler : unsigned char {
  None,          ///< as in BertForMaskedLM
  OfFirstToken,  ///< as in BertForSequenceClassification
};

/// BERT's encoder (Devlin et al. 2019): learned positions and token types, post-norm layers, erf-GELU. Parameters have
/// the names and shapes of Hugging Face's BertModel. A plain LibTorch module that knows nothing of memory.
class BertImpl : public torch::nn::Module {
 public:
  /// Throws UsageError when the width is not a multiple of the heads, or the padding is no token.
  BertImpl(const BertOptions& options, BertPooler pooler);
  ~BertImpl() override;

  /// (batch, sequence, width). Throws UsageError when the sequence is longer than the model's, or types or mask have
  /// another shape.
  at::Tensor forward(const BertInput& input);

  /// One vector for each text, (batch, width), made from that of its first token. Throws UsageError without the pooler.
  at::Tensor pooled(const at::Tensor& hidden);

  [[nodiscard]] const at::Tensor& token_embedding() const;
  [[nodiscard]] const BertOptions& options() const { return options_; }

 private:
  class Embeddings;
  class Encoder;

  BertOptions options_;
  std::shared_ptr<Embeddings> embeddings_;
  std::shared_ptr<Encoder> encoder_;
  Dense pooler_;  ///< may be empty
};
TORCH_MODULE(Bert);

/// BERT that fills in what was masked; names and shapes of BertForMaskedLM. The output projection is the token
/// embedding.
class BertMaskedLmImpl : public torch::nn::Module {
 public:
  explicit BertMaskedLmImpl(const BertOptions& options);
  ~BertMaskedLmImpl() override;

  /// Logits (batch, sequence, vocabulary). Throws as BertImpl::forward.
  at::Tensor forward(const BertInput& input);

  /// Mean cross-entropy in nats of predicting `targets`, int64 (batch, sequence): a scalar, fp32. Targets of -100, as
  /// all have that were not masked, do not count.
  at::Tensor loss(const BertInput& input, const at::Tensor& targets);

  [[nodiscard]] Bert encoder() const { return encoder_; }

 private:
  class Head;

  Bert encoder_;
  std::shared_ptr<Head> head_;
};
TORCH_MODULE(BertMaskedLm);

/// BERT that sorts texts into classes; names and shapes of BertForSequenceClassification.
class BertClassifierImpl : public torch::nn::Module, public HasTask {
 public:
  BertClassifierImpl(const BertOptions& options, std::int64_t classes);

  /// Logits (batch, classes). Throws as BertImpl::forward.
  at::Tensor forward(const BertInput& input);

  /// Mean cross-entropy in nats of predicting `labels`, int64 (batch): a scalar, fp32.
  at::Tensor loss(const BertInput& input, const at::Tensor& labels);

  /// A pretrained encoder is loaded into it: see bert_encoder_name.
  [[nodiscard]] Bert encoder() const { return encoder_; }
  [[nodiscard]] Task task() const override { return Task::sequence_classification("classifier"); }

 private:
  double dropout_;
  Bert encoder_;
  Linear classifier_;
};
TORCH_MODULE(BertClassifier);

}  // namespace snug::models
