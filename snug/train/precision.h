#pragma once

#include <c10/core/DeviceType.h>

#include "snug/plan/step/action.h"
#include "snug/train/choices.h"

namespace snug::train {
struct Config;

/// Whether devices of a type multiply numbers in bf16, those of this machine, and are so faster with them than with
/// fp32. False where nobody tells.
bool multiplies_bf16(c10::DeviceType device);

/// What a choice comes to there: never Auto.
Compute computed_in(Compute compute, c10::DeviceType device);
/// That of a configuration, on its device.
Compute computed_in(const Config& config);

/// The lossy codec that plans may use; None of what is exact.
plan::Codec codec_of(Activations activations);

}  // namespace snug::train
