#pragma once

// All that a program needs to train a LibTorch model inside a memory budget.
#include "snug/base/bytes.h"
#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/monitor.h"
#include "snug/memory/out_of_budget.h"
#include "snug/ops/linear_cross_entropy.h"
#include "snug/optim/adafactor.h"
#include "snug/optim/adamw.h"
#include "snug/optim/adamw_8bit.h"
#include "snug/optim/clipping.h"
#include "snug/optim/grad_scaler.h"
#include "snug/optim/lion.h"
#include "snug/optim/muon.h"
#include "snug/optim/schedule.h"
#include "snug/optim/sgd.h"
#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/planner.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/record/declared_operators.h"
#include "snug/replay/checkpoint.h"
#include "snug/replay/checkpointed.h"
#include "snug/replay/fit.h"
#include "snug/replay/region.h"
#include "snug/replay/session.h"
#include "snug/state/safetensors.h"
#include "snug/state/state_writer.h"
#include "snug/state/training_state.h"

namespace snug {
using namespace literals;  // NOLINT: 400_MiB
}
