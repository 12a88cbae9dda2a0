#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/replay/session.h"
#include "snug/replay/streamed_tensors.h"

namespace snug {

struct FitOptions {
  Bytes budget = 0;  ///< all of the device's memory that tensors may take. Required.
  /// Whose memory the budget is for; none: that of the sample's first tensor, where it has one, or the CPU where
  /// the machine has nothing else; else UsageError. An accelerator without
  /// an index is the one that the calling thread uses.
  std::optional<c10::Device> device = {};
  /// The same of further devices that the step uses, or of the CPU beside an accelerator; those without one have no
  /// limit. The plan is for all of them.
  std::vector<DeviceBudget> other_budgets = {};
  /// Memory of the host outside of all budgets, to which the plan may move what autograd saves, where that is quicker
  /// than making it again; page-locked beside an accelerator. None: nothing is moved.
  std::optional<Bytes> host_budget = {};
  /// The same of a disk: room in a file without a name in the folder that TMPDIR names. Steps go on while it is written
  /// and read.
  std::optional<Bytes> disk_budget = {};
  /// A lossy codec (BFloat16, Float8, Int8, Int4) that plans may use where a step does not fit, or is slower, without:
  /// backward then gets other numbers in place of some of what autograd saves, within memory::error_bound, and nothing
  /// else is of other bits: not the forward pass, nor what is made again. None: all gradients have the plain bits.
  plan::Codec lossy = plan::Codec::None;
  /// Weights, and what the optimizer keeps of them, whose contents are not all in the device's memory: the plan says
  /// how many bytes of the budget are their window, and values go to the same tiers, which have the budgets of theirs.
  std::shared_ptr<StreamedTensors> streamed = nullptr;
  /// Whether what steps take of an accelerator's memory lies in one range of it, see Session::use_arena().
  bool arena = false;
  /// Compares, by a hash, each value that is recomputed for the first time with what it was. Where it has other bits
  /// the step throws Error, which names the operator, and gradients are as before. See VerifyReplay::Once.
  bool check = true;
  std::string strategy = "optimal";  ///< as plan::strategy_from reads it
  /// The optimizer, so that the plan counts what its update takes and the state that it will make: one of LibTorch's,
  /// or one with a `rehearse()` of its own. It must outlive fit(), which leaves it as it was.
  replay::Rehearsal optimizer = {};
  /// In place of that, a function that does what the update does, for its memory; see replay::Rehearsal.
  replay::Rehearsal update = {};
  /// Steps whose gradients are added up before an update. Where there are more than one, those of the later ones, which
  /// find gradients, are recorded and planned as well: a budget that is accepted is one for all of them.
  std::int64_t micro_batches = 1;
  /// With the processes that train the same model together, each with a session of its own: all have one, or none.
  std::shared_ptr<Agreement> agreement = alone();
};

namespace replay {
/// record_step under a limit, or without one, while what sessions hold is lifted. Throws DoesNotFit when not even
/// eviction makes room for the step, there or on a device of other_budgets; Error where that is so in another process
/// of the group. What is refused in one of them is recorded again in all; what fails in one of them ends in all.
RecordedStep record_step_within(std::optional<Bytes> limit, const Forward& forward, memory::DeviceMemory& memory,
                                const RecordOptions& options = {});
/// What a training step is made of: one recorded step, or, of several micro-batches, a later one, behind which the
/// update is, and the first. Within a limit, or without one.
std::vector<RecordedStep> record_micro_batches(std::int64_t count, std::optional<Bytes> limit, const Forward& forward,
                                               memory::DeviceMemory& memory, const RecordOptions& options);
Session fit(const Forward& forward, FitOptions options, std::optional<c10::Device> device_of_sample);

/// That of the first tensor in a sample: a tensor, a torch::data::Example, or tuples, pairs and ranges of such. None in
/// anything else.
template <class Sample>
std::optional<c10::Device> device_of(const Sample& sample) {
  if constexpr (std::is_convertible_v<const Sample&, const at::Tensor&>) {
    const at::Tensor& tensor = sample;
    return tensor.defined() ? std::optional(tensor.device()) : std::nullopt;
  } else if constexpr (requires {
                         device_of(sample.data);
                         device_of(sample.target);
                       }) {
    const auto device = device_of(sample.data);
    return device ? device : device_of(sample.target);
  } else if constexpr (requires { std::tuple_size<Sample>::value; }) {
    return std::apply(
        [](const auto&... parts) {
          std::optional<c10::Device> device;
          (void)((device = device_of(parts)) || ...);
          return device;
        },
        sample);
  } else if constexpr (requires { sample.begin() != sample.end(); }) {
    for (const auto& part : sample) {
      if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(part)>, Sample>) {
        if (const auto device = device_of(part)) return device;
      }
    }
  }
  return std::nullopt;
}
}  // namespace replay

/// Plans and caps the training step of any LibTorch model. Runs step(sample), which returns the loss, and its backward
/// pass twice to record it, without a trace: gradients, buffers and the random generators are as before. A step that
/// calls backward() itself, and goes on to update, runs as far as that. Then every session.backward(step, batch) stays
/// within the budget, with gradients bitwise those of the plain step.
/// Throws DoesNotFit, which names the smallest budget and its parts, and UsageError for a budget that is not positive;
/// and Error where another process of the group has thrown.
template <class Step, class Batch>
Session fit(Step&& step, const Batch& sample, const FitOptions& options) {
  return replay::fit([&]() -> at::Tensor { return std::invoke(step, sample); }, options, replay::device_of(sample));
}

/// Caps the training steps of any LibTorch model, and plans them from the first one that runs: nothing runs twice, and
/// nothing is put back. Until it has run nobody knows whether the steps fit: see Session::without_sample. Throws
/// UsageError for options that a recording needs: an optimizer or update, micro-batches, tiers, streamed tensors, a
/// lossy codec.
Session fit(const FitOptions& options);

}  // namespace snug
