#include "snug/state/mapped_weights.h"

#include <fmt/format.h>

#include <system_error>

#include "snug/base/errors.h"

namespace snug::state {

std::shared_ptr<const MappedFile> map_weights(const std::filesystem::path& path) {
  try {
    return std::make_shared<const MappedFile>(path, MappedFile::Writes::Private);
  } catch (const std::system_error& error) {
    throw UsageError(fmt::format("opening weights: {}: {}; name a file of weights, or a folder with one", path.string(),
                                 error.code().message()));
  }
}

}  // namespace snug::state
