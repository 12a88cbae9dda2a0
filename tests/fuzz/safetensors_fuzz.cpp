// A whole file: its header, and whether its tensors lie inside of it.
#include <cstdlib>

#include "snug/base/damaged_file.h"
#include "snug/state/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace snug::state;
  try {
    const SafetensorsHeader header = parse_safetensors_header({data, size}, "f");
    for (const SafetensorsEntry& e : header.tensors) {
      if (e.begin > e.end || e.end > size) std::abort();
    }
    // What was read can be written, and read again.
    (void)format_safetensors_header(header.tensors, header.metadata);
  } catch (const snug::DamagedFile&) {
  }
  return 0;
}
