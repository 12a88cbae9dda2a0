// A .bin file of tokens without an index, and whether its tokens lie inside of it.
#include <cstdlib>

#include "snug/base/errors.h"
#include "snug/data/token_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug::data;
  try {
    const TokenLayout layout = find_tokens({data, size}, "f");
    const std::size_t bytes = static_cast<std::size_t>(layout.size) * width_of(layout.type);
    if (layout.runs.size() != 1 || layout.runs.front().begin + bytes != size) std::abort();
  } catch (const snug::Error&) {
  }
  return 0;
}
