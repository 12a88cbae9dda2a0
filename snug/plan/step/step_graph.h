#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/json_field.h"
#include "snug/plan/step/action.h"
#include "snug/plan/step/dataflow.h"
#include "snug/plan/step/device_part.h"
#include "snug/plan/step/encoding.h"
#include "snug/plan/step/move_cost.h"

namespace snug::plan {

/// One value of a recorded step.
struct ValueInfo {
  Bytes bytes = 0;            ///< that the step takes for it, as the allocator rounds them: none for leaves, nor for
                              ///< what is written into their storage
  bool saved = false;         ///< at least one saved tensor stands for it after the forward pass
  Must must = Must::Nothing;  ///< whatever plans say (see Choice)
  std::int32_t device = 0;    ///< in StepGraph::devices
  Bytes leaf_bytes = 0;       ///< of the storage of a leaf; most leaves were there before the step, and are counted in
                              ///< StepGraph::static_bytes too
  Encodings encodings{};      ///< plans may compress it so
  friend bool operator==(const ValueInfo&, const ValueInfo&) = default;
};

/// One operator call of the forward pass.
struct OpInfo {
  std::string name;             ///< "aten::addmm"
  std::uint64_t signature = 0;  ///< of name, inputs and geometry: what a later step is compared with
  double seconds = 0;
  Bytes peak_bytes = 0;     ///< highest memory during the call above that before it, outputs included
  Bytes other_bytes = 0;    ///< memory it left behind that is no output, such as a random generator's state
  std::string inputs = {};  ///< types and sizes of its tensors, for messages: "float[512, 64], float[64]"
  std::string module = {};  ///< the path of ModuleScope in which it ran; empty outside of all
  std::int64_t stream = 0;  ///< of its device, as c10 numbers them
  friend bool operator==(const OpInfo&, const OpInfo&) = default;
};

/// What happened in a step, in order.
struct Event {
  enum class Kind : std::uint8_t {
    Run,      ///< the forward pass ran operator `id`
    Die,      ///< the program let go of value `id`; it lives on only if it is held
    Save,     ///< a saved tensor stands for value `id`
    Settle,   ///< the forward pass is over
    Unpack,   ///< a backward node asked for value `id`
    Release,  ///< a saved tensor of value `id` was destroyed
    Other,    ///< other allocations and frees
  };
  Kind kind = Kind::Other;
  std::int32_t id = -1;
  Bytes peak = 0;      ///< Other: the highest memory above that before it
  Bytes net = 0;       ///< Other: memory after it above that before it
  double seconds = 0;  ///< of the step's own time, from the event before until this one was over: the step's clock
  friend bool operator==(const Event&, const Event&) = default;
};

/// So many micro-batches of a kind that are in flight.
struct InFlight {
  std::uint64_t kind = 0;  ///< its fingerprint
  std::int32_t count = 0;
  friend bool operator==(const InFlight&, const InFlight&) = default;
};

/// Of operators with these signatures, in order.
std::uint64_t fingerprint_of(std::span<const std::uint64_t> signatures);

/// One training step, as recorded: all that a planner needs. A plain value; see to_json for the file.
struct StepGraph {
  Dataflow flow;
  std::vector<OpInfo> ops;        // by OpId
  std::vector<ValueInfo> values;  // by ValueId
  std::vector<Event> events;
  std::vector<std::string> devices{
      "cpu"};                            ///< that its values are on; the bytes of operators and events are the first's
  std::vector<DevicePart> parts;         ///< of further devices whose memory was measured
  Moves moves;                           ///< where plans may move values
  Codec lossy = Codec::None;             ///< that plans may use, beside those that give back the same bits
  Bytes static_bytes = 0;                ///< allocated there before the step: weights, optimizer state, the batch
  std::array<Bytes, 6> static_by_tag{};  ///< the same by memory::Tag
  double step_seconds = 0;               ///< forward and backward of the recorded step: what its events add up to
  double update_seconds = 0;             ///< of the optimizer step; 0 when none was recorded
  Bytes update_bytes = 0;                ///< highest memory during it above that before it; also its event's
  /// Micro-batches of a larger step, with the same events as this one, that have gone forward and not backward when
  /// this one runs, at most, and this one.
  std::int32_t in_flight = 1;
  /// Where there are several kinds of them: what is in flight at once, this one among them, while it goes forward or
  /// backward. One for each that is not less than another.
  std::vector<std::vector<InFlight>> in_flight_with{};
  std::vector<std::int32_t> stages{};  ///< of those micro-batches, as the step numbers them: others may begin alike
  Bytes others_held = 0;   ///< what micro-batches of other kinds hold meanwhile, until this one's backward pass is over
  Bytes others_least = 0;  ///< of that, what they hold whatever their plans are: bounds go by this

  /// Counts more that is there before the step, by memory::Tag: of the first device, or from 1 on of `parts`.
  void add_static(std::size_t device, std::size_t tag, Bytes bytes);

  /// Appends the optimizer step: an event of its own, which no plan can change. `bytes`: by device, the first's and
  /// those of `parts`.
  void end_with_update(const std::vector<Bytes>& bytes, double seconds);
  /// What that took.
  [[nodiscard]] std::vector<Bytes> all_update_bytes() const;

  /// Bytes that the step takes for a value on the first device.
  [[nodiscard]] Bytes step_bytes(ValueId value) const {
    const ValueInfo& info = values[at(value)];
    return info.device == 0 ? info.bytes : 0;
  }

  /// What is there beside the step while it goes forward and backward.
  [[nodiscard]] Bytes outside() const noexcept { return static_bytes + others_held; }

  /// Scales the clock so that the events add up to `seconds`, and sets step_seconds.
  void set_step_seconds(double seconds);

  /// The same step has been measured once more: of everything the shorter time. It has the same operators.
  void take_shorter_times(const StepGraph& other);

  /// What the step takes of that device; nullptr where it was not measured, and for the first.
  [[nodiscard]] const DevicePart* part_of(std::string_view device) const;

  /// The position in `events` where forward ends and backward begins; their number when there is none.
  [[nodiscard]] std::size_t settle_event() const;

  /// The position in `events` where backward begins to work, behind what the program lets go of before.
  [[nodiscard]] std::size_t turn_event() const;
  /// The position behind the last event of backward nodes; that of settle_event() where there is none.
  [[nodiscard]] std::size_t backward_end() const;

  /// Tells graphs apart: fingerprint_of() all signatures.
  [[nodiscard]] std::uint64_t fingerprint() const;
  friend bool operator==(const StepGraph&, const StepGraph&) = default;
};

nlohmann::ordered_json to_json(const StepGraph& graph);
/// Refuses, as its source says, what is no graph that planners can take.
StepGraph step_graph_from(const JsonField& json);
/// The same, as a UsageError.
StepGraph step_graph_from_json(const nlohmann::json& json);

/// What to do about a step that is damaged.
inline constexpr const char* kGraphCure = "record it again with snug plan --graph-out";

}  // namespace snug::plan
