#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "snug/record/contents_hash.h"
#include "snug/record/verify_replay.h"

namespace snug::record {

/// The contents that a tensor had.
class Remembered {
 public:
  /// `how` is not Off.
  Remembered(const at::Tensor& tensor, VerifyReplay how);

  /// Where a tensor of the same layout first holds other bits, in words: "elements 4096 to 5119", or "element [7, 3],
  /// which was 0.25 and is 0.5". Nothing when it is the same.
  [[nodiscard]] std::optional<std::string> difference(const at::Tensor& now) const;

 private:
  std::variant<BlockHashes, std::vector<std::byte>> contents_;
};

}  // namespace snug::record
