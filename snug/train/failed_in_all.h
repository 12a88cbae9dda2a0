#pragma once

#include "snug/base/errors.h"

namespace snug::train {

/// What the processes of a team have all found at the same place: they may still do something together.
class FailedInAll : public Error {
 public:
  using Error::Error;
};

}  // namespace snug::train
