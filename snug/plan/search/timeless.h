#pragma once

#include <string_view>

#include "snug/base/bytes.h"

namespace snug::plan {

/// A guess at an operator's seconds that is the same in every run: as long as what it makes is large, and longer for
/// matrix products, convolutions and their kin. For what must not depend on how busy the machine is: floors.
[[nodiscard]] double timeless_seconds(std::string_view operator_name, Bytes output_bytes);

}  // namespace snug::plan
