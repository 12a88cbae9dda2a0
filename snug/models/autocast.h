#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace snug::models {

/// Runs what is inside in mixed precision, as torch.autocast does; nullopt leaves precision alone. The casts of the
/// weights are cached until the outermost scope of the thread ends.
class AutocastScope {
 public:
  AutocastScope(std::optional<c10::ScalarType> dtype, c10::DeviceType device = c10::kCPU);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool active_;
  c10::DeviceType device_;
  bool enabled_before_ = false;
  c10::ScalarType dtype_before_ = c10::ScalarType::Undefined;
};

}  // namespace snug::models
