#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "snug/record/autocast_state.h"
#include "snug/record/denormals.h"
#include "snug/record/global_settings.h"
#include "snug/record/operator_traits.h"

namespace snug::record {

/// One argument of a recorded call, as the CallLog has it: a constant, which is any argument that is no tensor, or the
/// `count` views of its tensors.
struct Argument {
  enum class Kind : std::uint8_t { Constant, Tensor, TensorList, OptionalTensorList };
  Kind kind = Kind::Constant;
  std::int32_t index = 0;  // of the constant, or of the first view
  std::int32_t count = 1;
};

/// Where an output of a call is found on the stack: a result, or an argument that was written. `element` is the
/// position in a list, or -1.
struct OutputSlot {
  bool is_argument = false;
  std::int16_t position = 0;
  std::int16_t element = -1;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // once it is an output's
  std::uint32_t layout = 0;                            // see layout_of; once it is an output's
};

/// Everything besides its arguments that decides a kernel's result: state of the calling thread and of the process.
struct CallState {
  c10::DispatchKeySet keys;  ///< the kernel was chosen by: those below the recorder's
  bool grad_mode = false;
  Denormals denormals = Denormals::Kept;
  std::optional<AutocastState> autocast;  ///< inside of the kernel; none: it is off
  GlobalSettings settings;                ///< of the process
  friend bool operator==(const CallState&, const CallState&) = default;
};

/// One recorded operator call. Which values it reads and makes stands in the ValueStore's Dataflow, under the same
/// OpId.
struct Call {
  c10::OperatorHandle op;
  const OperatorTraits* traits = nullptr;
  std::int32_t arguments = 0;  // where its arguments begin; there are as many as in the schema
  std::int32_t outputs = 0;    // where its output slots begin; as many as the Dataflow has outputs
  std::int32_t random = -1;    // the first of what it draws, or -1
  std::int16_t draws = 0;      // how many generators it draws from
  std::int16_t state = 0;      // the thread's state that it ran in, see CallLog::state
};

}  // namespace snug::record
