#pragma once

#include <optional>

namespace snug::record {

/// Said by an operator's kernel while it runs, of itself: how long it takes where it is replayed, if that is not what
/// it takes now, as where it finds what it would bring. Of this thread.
void say_seconds_again(double seconds);

/// What has been said since somebody last asked.
std::optional<double> take_seconds_again();

}  // namespace snug::record
