#pragma once

#include "snug/base/errors.h"

namespace snug::memory {

/// Contents do not fit into a tier: its budget is taken, or the machine has no more. Where they have to go there that
/// is wrong use.
class TierFull final : public Error {
 public:
  using Error::Error;
  [[nodiscard]] int exit_code() const noexcept override { return 2; }
};

}  // namespace snug::memory
