#pragma once

#include <c10/core/Device.h>

#include "snug/base/bytes.h"
#include "snug/plan/step/ids.h"
#include "snug/record/tape.h"

namespace snug::replay {

/// An operator of a replay whose operands are not all there: eviction has taken some for others.
struct Starved {
  plan::OpId op;
  Bytes missing = 0;
  c10::Device device = c10::kCPU;  ///< of the largest that is missing

  static Starved at(const record::Tape& tape, plan::OpId op);
  /// Throws OutOfBudget.
  [[noreturn]] void refuse(const record::Tape& tape) const;
};

}  // namespace snug::replay
