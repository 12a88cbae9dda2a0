#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace snug::testing {

/// An empty folder. Names begin with that of the file of tests, and a slash.
inline std::filesystem::path scratch(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / ("snug_" + name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace snug::testing
