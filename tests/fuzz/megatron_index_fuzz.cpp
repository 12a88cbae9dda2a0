// An .idx file, for a .bin file as long as its first two bytes say.
#include "snug/base/errors.h"
#include "snug/data/megatron_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::uint64_t bytes = data[0] + 256U * data[1];
  try {
    (void)snug::data::parse_megatron_index({data + 2, size - 2}, bytes, "f");
  } catch (const snug::Error&) {
  }
  return 0;
}
