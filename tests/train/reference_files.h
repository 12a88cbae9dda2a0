#pragma once

#include <filesystem>

namespace snug::train {

/// The folder of what make_references.py wrote.
inline const std::filesystem::path kHere = std::filesystem::path(SNUG_TESTS) / "train";

}  // namespace snug::train
