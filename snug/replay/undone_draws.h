#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "snug/record/recording.h"

namespace snug::replay {

/// Random generators are restored at the end of the scope: the default ones of all devices, and each that this thread's
/// operators are handed, a program's own, whose state is noted before its first use. One thread.
class UndoneDraws {
 public:
  UndoneDraws();
  ~UndoneDraws();
  UndoneDraws(const UndoneDraws&) = delete;
  UndoneDraws& operator=(const UndoneDraws&) = delete;

 private:
  void note(at::Generator generator);

  struct Known {
    at::Generator generator;
    std::vector<std::uint8_t> state;  // no memory of the device, whose books may be open
  };
  std::mutex mutex_;  // operators of a backward pass run on autograd's threads
  std::vector<Known> known_;
  record::OperatorGate gate_;
};

}  // namespace snug::replay
