// For test programs whose tests make their tensors without saying where: on the tests' device.
#include "snug/described/new_tensors.h"
#include "tests/device/test_device.h"

namespace snug::testing {
namespace {

/// Before the first test, and before main().
[[maybe_unused]] const bool kFactoriesThere = [] {
  if (test_device().is_cpu()) return false;
  static const described::NewTensorsOn there(test_device());
  return true;
}();

}  // namespace
}  // namespace snug::testing
