// The .metadata of torch.distributed.checkpoint: a pickle, and what its parts are.
#include "snug/base/errors.h"
#include "snug/state/torch_checkpoint.h"
#include "tests/data/token_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const snug::data::TemporaryFolder folder("torch_checkpoint_fuzz");
  static const auto part = folder.write("__0_0.distcp", "no archive");
  (void)folder.write(".metadata", {reinterpret_cast<const char*>(data), size});
  try {
    for (const auto& [name, tensor] : snug::state::open_torch_checkpoint(folder.path())) (void)tensor.read();
  } catch (const snug::Error&) {
  }
  return 0;
}
