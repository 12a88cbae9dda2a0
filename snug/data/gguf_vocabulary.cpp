#include "snug/data/gguf_vocabulary.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/mapped_file.h"
#include "snug/data/tokenizer_format.h"

namespace snug::data {
namespace {

enum Type : std::int64_t { kUnknown = 2, kControl = 3, kAddedByUser = 4, kUnused = 5 };

}  // namespace

GgufVocabulary vocabulary_of_gguf(const GgufFields& metadata) {
  using Texts = std::vector<std::string>;
  GgufVocabulary v;
  v.model = metadata.optional<std::string>("tokenizer.ggml.model", "");
  v.pre = metadata.optional<std::string>("tokenizer.ggml.pre", "");
  v.tokens = metadata.optional<Texts>("tokenizer.ggml.tokens", {});
  v.merges = metadata.optional<Texts>("tokenizer.ggml.merges", {});
  v.types = metadata.optional<std::vector<std::int64_t>>("tokenizer.ggml.token_type", {});
  v.begin = metadata.find<TokenId>("tokenizer.ggml.bos_token_id");
  v.add_begin = metadata.find<bool>("tokenizer.ggml.add_bos_token");
  v.ends = ends_of_gguf(metadata);
  return v;
}

std::vector<TokenId> ends_of_gguf(const GgufFields& metadata) {
  std::vector<TokenId> ends;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (const auto end = metadata.find<TokenId>(key, kNotNegative)) ends.push_back(*end);
  }
  return ends;
}

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
  if (!v.ends.empty() && v.ends.front() < static_cast<TokenId>(v.tokens.size())) model.end = v.ends.front();
  return model;
}

BytePairTokenizer tokenizer_of_gguf(const GgufMetadata& metadata, std::string_view name) {
  const GgufFields fields(
      metadata, {.name = fmt::format("tokenizer: {}", name), .cure = "use a GGUF file as llama.cpp writes it"});
  return BytePairTokenizer(byte_pair_model(vocabulary_of_gguf(fields), name));
}

const TokenizerFormat& gguf_vocabulary_format() {
  static const TokenizerFormat format{
      .name = "a GGUF file",
      .recognizes = [](const std::filesystem::path& path) { return path.extension() == ".gguf"; },
      .open = [](const std::filesystem::path& path, const TokenizerOptions&) -> std::unique_ptr<const Tokenizer> {
        try {
          const MappedFile file(path);
          ByteCursor from(file.bytes(), path.string());
          return std::make_unique<BytePairTokenizer>(
              tokenizer_of_gguf(take_gguf_preamble(from).metadata, path.string()));
        } catch (const std::system_error& error) {
          throw UsageError(
              fmt::format("tokenizer: {} cannot be read: {}; name a GGUF file", path.string(), error.code().message()));
        }
      },
      .beside = TokenizerFormat::Beside::Nothing};
  return format;
}

}  // namespace snug::data
