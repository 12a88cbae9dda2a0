#pragma once

#include <filesystem>

#include <string_view>

namespace snug::data {

/// The value of data.path that stands for libtorch_headers().
inline constexpr std::string_view kLibTorchHeaders = "libtorch-headers";

/// The folder of the C++ headers that belong to the LibTorch this process runs on: 15 MB of text that is wherever
/// LibTorch is. Throws UsageError when LibTorch was installed without them.
std::filesystem::path libtorch_headers();

}  // namespace snug::data
