#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "snug/record/recording_key.h"

namespace snug::record {

/// As long as it lives, what this thread runs is no part of a step: it is not recorded, and has no gradient.
class Unseen {
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard not_recorded_{kRecordingKey};
};

}  // namespace snug::record
