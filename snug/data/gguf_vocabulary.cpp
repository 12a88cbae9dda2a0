#include "snug/data/gguf_vocabulary.h"

#include <fmt/format.h>

#include <utility>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

enum Type : std::int64_t { kUnknown = 2, kControl = 3, kAddedByUser = 4, kUnused = 5 };

}  // namespace

BytePairModel byte_pair_model(const GgufVocabulary& v, std::string_view name) {
  const auto fail = [&](const std::string& what) { throw UsageError(fmt::format("tokenizer: {}: {}", name, what)); };
  if (v.model != "gpt2") {
    fail(
        fmt::format("its tokenizer is of kind \"{}\", and only byte-level pairs (\"gpt2\") are known; give the "
                    "tokenizer.json or the .model file it was made from",
                    v.model));
  }
  if (v.tokens.empty()) fail("it has no tokens");
  if (v.types.size() != v.tokens.size()) {
    fail(fmt::format("it has {} tokens and types for {}", v.tokens.size(), v.types.size()));
  }
  BytePairModel model;
  model.pre_tokenizer = PreTokenizer::named(v.pre);
  model.whole_words_first = v.pre == "llama-bpe";
  for (std::size_t i = 0; i < v.tokens.size(); ++i) {
    const bool written_out = v.types[i] == kControl || v.types[i] == kAddedByUser || v.types[i] == kUnknown;
    if (written_out) model.added.push_back({static_cast<TokenId>(i), v.types[i] != kAddedByUser});
    std::optional<std::string> bytes = written_out ? v.tokens[i] : bytes_of_printable(v.tokens[i]);
    // Unused ones fill a vocabulary up, under any name.
    if (!bytes && v.types[i] == kUnused) bytes = v.tokens[i];
    if (!bytes) fail(fmt::format("token {}, \"{}\", is not of bytes", i, v.tokens[i]));
    model.tokens.push_back(std::move(*bytes));
  }
  for (const std::string& merge : v.merges) {
    const std::size_t space = merge.find(' ');
    if (space == std::string::npos) fail(fmt::format("the merge \"{}\" is no pair", merge));
    const auto left = bytes_of_printable(std::string_view(merge).substr(0, space));
    const auto right = bytes_of_printable(std::string_view(merge).substr(space + 1));
    if (!left || !right) fail(fmt::format("the merge \"{}\" is not of bytes", merge));
    model.merges.emplace_back(*left, *right);
  }
  if (v.add_begin.value_or(v.pre == "llama-bpe" && v.begin)) {
    if (!v.begin || *v.begin < 0 || *v.begin >= static_cast<TokenId>(v.tokens.size())) {
      fail("it wants a first token in every text and names none");
    }
    model.before.push_back(*v.begin);
  }
  return model;
}

}  // namespace snug::data
