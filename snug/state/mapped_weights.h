#pragma once

#include <filesystem>
#include <memory>

#include "snug/base/mapped_file.h"

namespace snug::state {

/// A file of weights, mapped so that tensors can be views of it which keep it open; a write into one does not reach the
/// file. Throws UsageError when there is no such file.
std::shared_ptr<const MappedFile> map_weights(const std::filesystem::path& path);

}  // namespace snug::state
