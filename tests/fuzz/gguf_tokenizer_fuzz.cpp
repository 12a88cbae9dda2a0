// The tokenizer in a GGUF file's metadata.
#include "snug/base/errors.h"
#include "snug/data/byte_pair.h"
#include "snug/data/gguf_vocabulary.h"
#include "snug/state/gguf_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug;
  try {
    const state::GgufHeader header = state::parse_gguf_header({data, size}, "f");
    data::GgufVocabulary v;
    if (const auto* const found = header.find<std::string>("tokenizer.ggml.model")) v.model = *found;
    if (const auto* const found = header.find<std::string>("tokenizer.ggml.pre")) v.pre = *found;
    if (const auto* const found = header.find<std::vector<std::string>>("tokenizer.ggml.tokens")) v.tokens = *found;
    if (const auto* const found = header.find<std::vector<std::string>>("tokenizer.ggml.merges")) v.merges = *found;
    if (const auto* const found = header.find<std::vector<std::int64_t>>("tokenizer.ggml.token_type")) v.types = *found;
    const data::BytePairTokenizer tokenizer(data::byte_pair_model(v, "f"));
    (void)tokenizer.decode(tokenizer.encode("the thing \xff\xf0"));
  } catch (const Error&) {
  }
  return 0;
}
