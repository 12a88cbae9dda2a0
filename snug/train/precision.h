#pragma once

#include "snug/train/choices.h"

namespace snug::train {

/// Whether this processor multiplies numbers in bf16, and is so faster with them than with fp32.
bool multiplies_bf16();

/// What a choice comes to on this machine: never Auto.
Compute computed_in(Compute compute);

}  // namespace snug::train
