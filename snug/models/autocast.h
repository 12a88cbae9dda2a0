#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace snug::models {

/// What becomes of casts of weights in mixed precision.
enum class WeightCasts : unsigned char {
  Cached,  ///< until the outermost scope of the thread ends, as PyTorch has it: another copy of all weights there
  Dropped  ///< with their last use; the bits are the same where no weight is cast twice
};

/// Runs what is inside on devices of a type in mixed precision, as torch.autocast does; nullopt leaves precision alone.
class AutocastScope {
 public:
  AutocastScope(std::optional<c10::ScalarType> dtype, c10::DeviceType device, WeightCasts casts = WeightCasts::Cached);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool active_;
  c10::DeviceType device_;
  bool enabled_before_ = false;
  bool caching_before_ = true;
  c10::ScalarType dtype_before_ = c10::ScalarType::Undefined;
};

}  // namespace snug::models
