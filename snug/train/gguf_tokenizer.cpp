#include "snug/train/gguf_tokenizer.h"

#include "snug/train/gguf_metadata.h"

namespace snug::train {

namespace fs = std::filesystem;

data::GgufVocabulary vocabulary_of_gguf(const state::GgufHeader& header, const fs::path& path) {
  const GgufMetadata m(header, path);
  data::GgufVocabulary v;
  v.model = m.text("tokenizer.ggml.model", "");
  v.pre = m.text("tokenizer.ggml.pre", "");
  v.tokens = m.list<std::string>("tokenizer.ggml.tokens");
  v.merges = m.list<std::string>("tokenizer.ggml.merges");
  v.types = m.list<std::int64_t>("tokenizer.ggml.token_type");
  v.begin = m.integer("tokenizer.ggml.bos_token_id");
  v.add_begin = m.flag("tokenizer.ggml.add_bos_token");
  return v;
}

data::BytePairTokenizer tokenizer_of_gguf(const state::GgufHeader& header, const fs::path& path) {
  return data::BytePairTokenizer(data::byte_pair_model(vocabulary_of_gguf(header, path), path.string()));
}

std::vector<data::TokenId> ends_of_gguf(const state::GgufHeader& header, const fs::path& path) {
  const GgufMetadata m(header, path);
  std::vector<data::TokenId> ends;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    if (const auto end = m.integer(key)) ends.push_back(*end);
  }
  return ends;
}

}  // namespace snug::train
