#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "snug/state/stored_tensor.h"

namespace snug::state {

struct Safetensors {
  StoredTensors tensors;
  std::map<std::string, std::string> metadata;
};

/// Opens a file in the safetensors format, mapped: nothing but its header is read until a tensor is. Tensors are views
/// of the file, but for those whose bytes are not aligned, which are copied. Throws UsageError when there is no such
/// file, DamagedFile when it is not what the format says.
Safetensors open_safetensors(const std::filesystem::path& path);

/// Opens what Hugging Face's libraries save: a folder with model.safetensors, or else with model.safetensors.index.json
/// and the files it names; or that index; or one file. Throws as open_safetensors does, and DamagedFile when the index
/// names a tensor that its file does not have; what a file holds beyond the index is left out.
StoredTensors open_sharded_safetensors(const std::filesystem::path& path);

/// Writes tensors of any device and strides, whole or not at all, as the reference implementation would, to the byte.
/// Memory: a copy of one tensor at a time where it is not contiguous on the CPU. Throws UsageError for a type the
/// format has no name for and for a name given twice, Error when the file cannot be written.
void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace snug::state
