#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "snug/models/context_parts.h"
#include "snug/models/decoder_block.h"
#include "snug/models/embedding.h"
#include "snug/models/layer_norm.h"
#include "snug/models/layer_parts.h"
#include "snug/models/linear.h"
#include "snug/models/rms_norm.h"
#include "snug/models/task.h"
#include "snug/models/vocabulary_loss.h"

namespace snug::models {

/// Several documents in one row, which do not see each other.
struct DocumentRows {
  at::Tensor positions;  ///< int64 (batch, sequence), from 0 in each document
  at::Tensor mask;       ///< bool (batch, 1, sequence, sequence): whether a token sees another
};

/// Each position has a vector, which is added to those of the tokens.
struct LearnedPositions {
  Embedding table{nullptr};  ///< (longest sequence, width)
  double dropout = 0;        ///< of the sum
};

/// What a CausalLm is made of.
struct DecoderParts {
  std::string family;         ///< in messages
  std::string blocks_scope;   ///< the ModuleScope of block 3 is "<this>.3"
  std::int64_t sequence = 0;  ///< longest input
  VocabularyLoss loss;
  Embedding tokens{nullptr};
  std::variant<LearnedPositions, RotaryOptions> positions;
  std::vector<std::shared_ptr<DecoderBlock>> blocks{};
  std::variant<LayerNorm, RmsNorm> norm;  ///< behind the last block
  Linear head{nullptr};                   ///< the output projection; empty: it is the token embedding
};

/// A decoder that predicts the next token. Each family of models (gpt.h, gpt2.h, llama.h) derives from it, makes its
/// parts and registers their parameters under the names that its files have. A plain LibTorch module that knows nothing
/// of memory.
class CausalLmImpl : public torch::nn::Module, public HasTask {
 public:
  /// Tokens int64 (batch, sequence) -> logits (batch, sequence, vocabulary). With a cache the tokens follow those that
  /// it has seen, which they attend to, and are added to it. Throws UsageError when that is longer than the model's.
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* cache = nullptr);
  /// The logits behind the last token alone: (batch, vocabulary).
  at::Tensor forward_last(const at::Tensor& tokens, KeyValueCache* cache = nullptr);

  /// What logits are made of: (batch, sequence, width). Throws as forward().
  at::Tensor hidden(const at::Tensor& tokens, KeyValueCache* cache = nullptr);
  /// hidden (..., width) -> (..., vocabulary), by output_matrix() and what adapters add to it.
  at::Tensor logits(const at::Tensor& hidden);
  /// (vocabulary, width)
  [[nodiscard]] ops::Matrix output_matrix() const;
  /// The name of the token embedding's parameter where that is the output projection, too; nullopt where the model has
  /// a projection of its own, and where the embedding is packed and no parameter.
  [[nodiscard]] std::optional<std::string> tied_embedding() const;

  /// Mean cross-entropy in nats of predicting `targets`, int64 (batch, sequence), from `tokens`: a scalar, fp32.
  /// Targets of -100 do not count. Computed as the model's options say, but plainly where the output projection has an
  /// adapter.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
  /// The same of rows of documents.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const DocumentRows& rows);

  /// A number that the loss will be multiplied by before backward, where it is read when a loss is computed; undefined:
  /// one. Losses that keep gradients keep them times it (see ops::linear_cross_entropy).
  void expect_loss_scale(at::Tensor scale) { loss_scale_ = std::move(scale); }

  /// Leaves this process its part of every layer, of the heads and of the vocabulary, as all processes of the group do
  /// with the same weights: from then on they go forward and backward together, with the same tokens, and have the same
  /// loss, which is that of all logits at once, whatever the options say. Dropout between layers is the same in all
  /// whose generators are, but with sequences in parts; these must be multiples of as many tokens. Throws UsageError
  /// where it cannot be divided.
  ModelInParts divide(const LayerParts& parts);
  /// Each process of the group has from now on a part of every sequence, as long as those of the others, which
  /// pieces_of() says, with positions and attention that are those of all of it: context parallel. loss() takes this
  /// process's tokens and targets, and is that of all, the same in each; random numbers are each process's generator's.
  /// Weights are whole in each process, which has a summand of every gradient. With a cache a process goes forward by
  /// itself, and sequences are whole. Throws UsageError for heads that cannot be divided.
  ModelInParts divide_sequences(const ops::LayerGroup& group, ContextMethod method = ContextMethod::Heads);
  /// Leaves this process some stages of a pipeline, of as many blocks as `blocks` says of each stage, in their order:
  /// parameters of others become empty and want no gradient. Returns parts of these, and what more than one of all
  /// stages has, as an embedding that is the output projection too. Layers may be in parts then. Throws UsageError
  /// where numbers of blocks do not add up.
  ModelInStages keep_stages(const std::vector<int>& blocks, const std::vector<int>& stages);
  /// One of these: of what the stage before has made, (batch, sequence, width) or a part of the sequences; of the
  /// tokens themselves in the first one, which takes no input. The last one has the loss. Throws UsageError for one
  /// that keep_stages() has not left.
  at::Tensor run_stage(int stage, at::Tensor input, const at::Tensor& tokens, const at::Tensor& targets,
                       const DocumentRows* rows);
  /// What its blocks compute, and its output projection, as amounts of parameters that are multiplied with.
  struct Work {
    std::vector<double> blocks;
    double behind = 0;
  };
  [[nodiscard]] Work work() const;
  /// Which layers are divided, and how.
  [[nodiscard]] virtual std::vector<NamedLayout> layouts() const = 0;
  /// Of which each process has as many: those of keys, where there are fewer.
  [[nodiscard]] virtual std::int64_t heads() const = 0;

  /// How its blocks attend from now on.
  void attend_by(AttentionMethod method) { attention_ = method; }

  /// Rows that their feed-forward parts have at a time from now on; 0: all. See in_parts().
  void feed_forward_by(std::int64_t rows) { feed_forward_rows_ = rows; }

  /// Whether an adapter adds to output_matrix().
  [[nodiscard]] bool output_adapted() const { return parts_.head && parts_.head->adapted(); }

  /// The longest input.
  [[nodiscard]] std::int64_t sequence() const { return parts_.sequence; }
  [[nodiscard]] std::int64_t vocabulary() const;
  [[nodiscard]] Task task() const override;

 protected:
  /// Registers nothing: whoever derives does.
  explicit CausalLmImpl(DecoderParts parts);
  [[nodiscard]] const DecoderParts& parts() const { return parts_; }
  /// Block 3 as "<path>.3".
  void register_blocks(const std::string& path);

 private:
  struct InParts {
    LayerParts how;
    std::int64_t first, each, vocabulary;  // rows of the vocabulary: here, in each, in all
  };
  struct InStages {
    std::vector<int> own;          // stages of this process
    std::vector<int> first_block;  // of each stage, and behind the last
  };
  at::Tensor run(const at::Tensor& tokens, KeyValueCache* cache, const DocumentRows* rows);
  BlockInput input_of(const at::Tensor& tokens, const KeyValueCache* cache, const DocumentRows* rows) const;
  at::Tensor run_blocks(at::Tensor x, BlockInput& input, KeyValueCache* cache, std::size_t first, std::size_t end);
  /// What is behind the blocks.
  at::Tensor finish(at::Tensor x);
  at::Tensor vectors(const at::Tensor& tokens);
  at::Tensor whole_loss_of(at::Tensor hidden, const at::Tensor& targets);
  void check_run(const at::Tensor& tokens, const KeyValueCache* cache, const DocumentRows* rows) const;
  at::Tensor own_logits(const at::Tensor& hidden);
  at::Tensor embed(const at::Tensor& tokens, const DocumentRows* rows, const BlockInput& input);
  void set_rotary(BlockInput& input, const at::Tensor& tokens, const at::Tensor& x, const DocumentRows* rows) const;
  at::Tensor loss_of(at::Tensor hidden, const at::Tensor& targets);

  DecoderParts parts_;
  std::optional<InParts> in_parts_;
  std::optional<InStages> in_stages_;
  Context context_;
  AttentionMethod attention_ = AttentionMethod::LibTorch;
  std::int64_t feed_forward_rows_ = 0;
  at::Tensor loss_scale_;
};

}  // namespace snug::models
