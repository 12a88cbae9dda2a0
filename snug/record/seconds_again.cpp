#include "snug/record/seconds_again.h"

#include <utility>

namespace snug::record {
namespace {

thread_local std::optional<double> said;

}  // namespace

void say_seconds_again(double seconds) { said = seconds; }

std::optional<double> take_seconds_again() { return std::exchange(said, std::nullopt); }

}  // namespace snug::record
