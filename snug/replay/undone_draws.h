#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <vector>

#include "snug/record/recording.h"

namespace snug::replay {

/// While the scope lives, the state of each random generator that this thread's operators are handed, a program's own
/// among them, is noted before its first use, and restored at the end. One thread.
class UndoneDraws {
 public:
  UndoneDraws();
  ~UndoneDraws();
  UndoneDraws(const UndoneDraws&) = delete;
  UndoneDraws& operator=(const UndoneDraws&) = delete;

 private:
  struct Known {
    at::Generator generator;
    std::vector<std::uint8_t> state;  // no memory of the device, whose books may be open
  };
  std::vector<Known> known_;
  record::OperatorGate gate_;
};

}  // namespace snug::replay
