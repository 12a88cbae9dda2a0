// An index of weights in files, beside one of them.
#include <cstdlib>

#include "snug/base/errors.h"
#include "snug/state/safetensors.h"
#include "tests/data/token_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const snug::data::TemporaryFolder folder("safetensors_index_fuzz");
  static const bool copied =
      std::filesystem::copy_file(SNUG_TESTS "/train/tiny/model.safetensors", folder.path() / "part.safetensors");
  if (!copied) return 1;
  (void)folder.write("model.safetensors.index.json", {reinterpret_cast<const char*>(data), size});
  try {
    static const std::size_t all = snug::state::open_sharded_safetensors(folder.path() / "part.safetensors").size();
    if (snug::state::open_sharded_safetensors(folder.path()).size() > all) std::abort();
  } catch (const snug::Error&) {
  }
  return 0;
}
