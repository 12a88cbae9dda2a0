#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/state/divided_tensors.h"
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

/// Writes tensors, whole or not at all, as the reference implementation would, to the byte. Memory: a copy of one
/// tensor at a time where it is not contiguous on the CPU. Throws UsageError for a type the format has no name for and
/// for a name given twice, Error when the file cannot be written, std::logic_error where a source has other bytes than
/// its type and shape say, and what a source throws; the file is as it was then.
void write_safetensors(const std::filesystem::path& path, const NamedSources& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Writes what open_sharded_safetensors and Hugging Face's libraries read: model.safetensors when the tensors take at
/// most `limit` bytes, else files of at most so much, in the order given, and model.safetensors.index.json; a tensor
/// that is larger has a file of its own. What an earlier save of the folder left beyond that is removed. Throws as
/// write_safetensors does; what can be read in the folder then is the earlier save, this one, or neither.
void write_sharded_safetensors(const std::filesystem::path& folder, const NamedSources& tensors, Bytes limit = 5_GiB,
                               const std::map<std::string, std::string>& metadata = {});

}  // namespace snug::state
