// An adapter_config.json beside the weights of an adapter.
#include "snug/base/errors.h"
#include "snug/state/peft_adapter.h"
#include "tests/data/token_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const snug::data::TemporaryFolder folder("peft_adapter_fuzz");
  static const bool copied = std::filesystem::copy_file(SNUG_TESTS "/train/tiny_adapter/adapter_model.safetensors",
                                                        folder.path() / "adapter_model.safetensors");
  if (!copied) return 1;
  (void)folder.write("adapter_config.json", {reinterpret_cast<const char*>(data), size});
  try {
    (void)snug::state::open_peft_adapter(folder.path()).modules();
  } catch (const snug::Error&) {
  }
  return 0;
}
