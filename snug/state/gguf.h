#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "snug/ops/block_format.h"
#include "snug/state/gguf_header.h"
#include "snug/state/stored_tensor.h"

namespace snug::state {

/// A tensor as its blocks stand in the file.
struct GgufBlocks {
  ops::BlockFormat format;
  std::vector<std::int64_t> shape;
  at::Tensor bytes;  ///< uint8, one dimension: a view of the mapped file, which it keeps open
};

struct Gguf {
  GgufHeader header;
  StoredTensors tensors;                                  ///< F16 and BF16 as they are, all other formats as fp32
  std::map<std::string, GgufBlocks, std::less<>> blocks;  ///< the same tensors, not decoded
};

/// Opens a GGUF file, mapped: nothing but its header is read until a tensor is, and decoding runs on LibTorch's
/// threads. Throws UsageError when there is no such file, DamagedFile when it is not what the format says.
Gguf open_gguf(const std::filesystem::path& path);

}  // namespace snug::state
