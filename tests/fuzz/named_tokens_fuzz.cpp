// The files beside a tokenizer.model, each read as each of them.
#include <string_view>

#include "snug/base/errors.h"
#include "snug/data/named_tokens.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug::data;
  for (const auto read : {tokens_of_tokenizer_json, tokens_of_added_tokens_json, tokens_of_tokenizer_config}) {
    try {
      (void)read({reinterpret_cast<const char*>(data), size}, "f");
    } catch (const snug::Error&) {
    }
  }
  return 0;
}
