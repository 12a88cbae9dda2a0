#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <optional>
#include <unordered_map>

#include "snug/base/bytes.h"
#include "snug/memory/codec.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/step/encoding.h"
#include "snug/plan/step/ids.h"
#include "snug/plan/step/step_graph.h"

namespace snug::record {
class Tape;

/// What a plan calls so; there must be one.
memory::Codec codec_of(plan::Codec codec);

/// Codecs that suit what saved results of a device's memory hold, of those that a tape holds or has held: how many
/// bytes are left, and how long it takes to encode and decode them. Of each the best that gives back the same bits, and
/// the lossy one that is named. On the CPU they are tried on the contents, with a MiB or two that nobody counts; on
/// accelerators those count whose bytes do not depend on the contents, and Narrow. The tape's mutex is held.
class MeasuredEncodings {
 public:
  /// `memory`: that the step is planned for.
  MeasuredEncodings(memory::DeviceMemory& memory, plan::Codec lossy) : memory_(memory), lossy_(lossy) {}

  /// A value of which the step takes so many bytes.
  struct Taken {
    plan::ValueId value;
    Bytes bytes;
  };
  /// On the CPU, what it holds now; the first of several times counts. Takes no memory of the device.
  void measure(const Tape& tape, Taken taken) noexcept;
  /// Whether, on an accelerator, one that has been saved is such that its encoding depends on what it holds, which is
  /// there; and the same as above of such a value, as operators on the device, for which the host waits.
  [[nodiscard]] bool depends_on_contents(const Tape& tape, Taken saved) const;
  /// Where there is no memory for that it has none.
  void measure_saved(const Tape& tape, Taken saved) { look_at(tape, saved); }
  /// At the end of the forward pass: measures what has not been, and notes all that suit.
  void note(const Tape& tape, plan::StepGraph& graph);
  /// The step is over: notes what they take on an accelerator, and leaves out what cannot be had there.
  void try_all(const Tape& tape, plan::StepGraph& graph) const;

 private:
  struct Contents {
    const c10::Storage& storage;  // none where they are gone
    Bytes bytes;
    c10::ScalarType type;
  };
  [[nodiscard]] std::optional<Contents> contents(const Tape& tape, Taken taken) const;
  void look_at(const Tape& tape, Taken taken);
  [[nodiscard]] plan::Encodings of_cpu(const Contents& of) const;
  [[nodiscard]] plan::Encodings of_accelerator(const Contents& of) const;
  [[nodiscard]] bool may_be_lossy(c10::ScalarType type) const {
    return lossy_ != plan::Codec::None && (type == c10::kFloat || type == c10::kBFloat16);
  }

  memory::DeviceMemory& memory_;
  plan::Codec lossy_;
  std::unordered_map<plan::ValueId, plan::Encodings> measured_;
};

}  // namespace snug::record
