// A manifest as it is, and its first line under a hash that is right, which no fuzzer would find.
#include <cstdlib>
#include <string_view>

#include "snug/base/damaged_file.h"
#include "snug/state/manifest.h"

namespace {

void read(std::string_view text) {
  using namespace snug::state;
  try {
    const Manifest manifest = parse_manifest(text, "f");
    if (parse_manifest(format_manifest(manifest), "f") != manifest) std::abort();
  } catch (const snug::DamagedFile&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read(text);
  const std::string line(text.substr(0, text.find('\n')));
  read(line + "\n" + snug::state::hash_of(line) + "\n");
  return 0;
}
