#include "snug/data/libtorch_headers.h"

#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "snug/base/errors.h"

namespace snug::data {

std::filesystem::path libtorch_headers() {
  Dl_info info{};
  std::filesystem::path headers;
  if (::dladdr(reinterpret_cast<void*>(&c10::GetDefaultCPUAllocator), &info) != 0 && info.dli_fname != nullptr) {
    headers = std::filesystem::path(info.dli_fname).parent_path().parent_path() / "include";
  }
  if (!std::filesystem::is_directory(headers)) {
    throw UsageError(fmt::format(
        "data: LibTorch's headers are not beside its libraries (looked in {}); set data.path to another text",
        headers.string()));
  }
  return headers;
}

}  // namespace snug::data
