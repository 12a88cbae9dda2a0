// A whole file: its metadata, and whether its tensors lie inside of it.
#include <cstdlib>

#include "snug/base/damaged_file.h"
#include "snug/state/gguf_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug::state;
  try {
    const GgufHeader header = parse_gguf_header({data, size}, "f");
    for (const GgufEntry& e : header.tensors) {
      if (e.begin > e.end || e.end > size) std::abort();
    }
  } catch (const snug::DamagedFile&) {
  }
  return 0;
}
