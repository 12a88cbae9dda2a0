#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "snug/base/errors.h"

namespace snug::train {

/// Throws the UsageError of a file or folder that no model can be taken from.
[[noreturn]] inline void refuse_model(const std::filesystem::path& path, std::string_view what) {
  throw UsageError(fmt::format("model: {}: {}", path.string(), what));
}

}  // namespace snug::train
