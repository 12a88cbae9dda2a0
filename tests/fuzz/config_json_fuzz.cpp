// A model's config.json.
#include <string_view>

#include "snug/base/errors.h"
#include "snug/models/llama_json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const snug::JsonFile file(std::string_view(reinterpret_cast<const char*>(data), size), {.name = "f"});
    (void)snug::models::llama_options_of_json(file.root());
  } catch (const snug::Error&) {
  }
  return 0;
}
