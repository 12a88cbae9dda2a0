#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "snug/data/text_corpus.h"
#include "snug/data/token_file.h"

namespace snug::data {

/// Token ids one after another, and where the documents among them begin, whatever they come from. Movable, not
/// copyable. Reads are safe from any number of threads.
class TokenCorpus {
 public:
  /// The bytes of a text are its tokens, and its files the documents.
  TokenCorpus(TextCorpus text);  // NOLINT(google-explicit-constructor): a text is a corpus as it stands
  TokenCorpus(TokenFile file);   // NOLINT(google-explicit-constructor): so is a file of tokens
  /// Ids in memory: one-dimensional, int32, on the CPU, contiguous. The corpus shares them; they must not change.
  /// `documents` holds the first token of each: it begins with 0 and never falls, and may have documents without
  /// tokens. Throws UsageError when one of this is not so or there is no id.
  TokenCorpus(at::Tensor ids, std::vector<std::int64_t> documents);

  /// Tokens.
  [[nodiscard]] std::int64_t size() const;
  /// The first token of each document; documents may be empty. Valid as long as the corpus.
  [[nodiscard]] std::span<const std::int64_t> documents() const;

  /// Copies out.size() ids from number `offset` on. Throws Error when they are not all inside.
  void copy(std::int64_t offset, std::span<std::int64_t> out) const;

  /// The highest id there is; reads them all.
  [[nodiscard]] std::int64_t highest_id() const;

  /// Throws UsageError, naming the first id that a model of `vocabulary` ids does not have (0 to vocabulary - 1) and
  /// its place. Reads all ids, unless they are stored so that none can be.
  void check_vocabulary(std::int64_t vocabulary) const;

  /// What a token is called: "bytes" for a text, else "tokens".
  [[nodiscard]] std::string_view unit() const;

 private:
  struct InMemory {
    at::Tensor ids;
    std::vector<std::int64_t> documents;
  };
  template <class Call>
  void for_each_part(const Call& call) const;

  std::variant<TextCorpus, TokenFile, InMemory> source_;
};

}  // namespace snug::data
