// The tokenizer in a GGUF file's metadata.
#include "snug/base/errors.h"
#include "snug/data/gguf_vocabulary.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug;
  try {
    ByteCursor from({data, size}, "f");
    const data::BytePairTokenizer tokenizer = data::tokenizer_of_gguf(take_gguf_preamble(from).metadata, "f");
    (void)tokenizer.decode(tokenizer.encode("the thing \xff\xf0"));
  } catch (const Error&) {
  }
  return 0;
}
