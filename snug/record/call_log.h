#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "snug/plan/step/ids.h"
#include "snug/record/call.h"
#include "snug/record/operator_traits.h"
#include "snug/record/random_state.h"
#include "snug/record/view.h"

namespace snug::record {

/// The recorded calls by OpId, with all that running one again takes but the contents of its tensors. Grows at the end.
/// What an operator is called with must be noted before it runs, and whether it is recorded shows afterwards: so the
/// parts of a call (arguments, views, random state) come first, and are rolled back or followed by the call. Not
/// synchronized.
class CallLog {
 public:
  CallLog();

  // --- the call that is about to run -------------------------------------------------------------------------------

  /// How many parts there are.
  struct Mark {
    std::size_t arguments, views, constants, geometry, draws;
  };
  [[nodiscard]] Mark mark() const noexcept {
    return {arguments_.size(), views_.size(), constants_.size(), geometry_.size(), draws_.size()};
  }
  /// Forgets the parts that have come since.
  void roll_back(const Mark& mark);

  /// A call whose parts come next, in the calling thread's present state. `keys`: that its kernel is chosen by.
  [[nodiscard]] Call begin(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet keys) {
    return {.op = op,
            .traits = &traits,
            .arguments = static_cast<std::int32_t>(arguments_.size()),
            .outputs = static_cast<std::int32_t>(slots_.size()),
            .state = note_state(traits, keys)};
  }
  /// The next argument is no tensor.
  void add_constant(const c10::IValue& value);
  /// A tensor of the next argument, which is plain (see is_plain); add_tensors follows when all of its tensors have
  /// come.
  void add_view(const at::Tensor& tensor, plan::ValueId value);
  void add_undefined_view() { views_.emplace_back(); }
  [[nodiscard]] std::int32_t next_view() const noexcept { return static_cast<std::int32_t>(views_.size()); }
  /// The next argument is a tensor, or a list of tensors: the views from `first` on.
  void add_tensors(Argument::Kind kind, std::int32_t first);
  /// Adds a generator that it draws from, or may draw from, with its state before the call.
  void add_random_state(Call& call, RandomState state);
  /// The call has run: notes where its generators stand now.
  void note_drawn(const Call& call);
  /// Drops the states of those generators that the newest call has not moved.
  void forget_unmoved(Call& call);
  /// No call runs again: the states of generators go, several KiB each.
  void forget_draws() noexcept { draws_.clear(); }
  /// A hash of the operator's name and of the value, type, sizes and place of each tensor, of which all have been
  /// added: what steps are told apart by. Excludes strides, constants, and the offset in
  /// a storage that existed before the step (`was_there`).
  [[nodiscard]] std::uint64_t sign(const OperatorTraits& traits, c10::function_ref<bool(plan::ValueId)> was_there);

  // --- recorded calls ----------------------------------------------------------------------------------------------

  /// The call has run, and is recorded.
  plan::OpId add(Call call, std::uint64_t signature);
  /// The next output of the newest call.
  void add_output(OutputSlot slot) { slots_.push_back(slot); }
  /// How long the newest call took.
  void note_seconds(double seconds);
  /// Notes the sequence number that autograd gives to the next node that it makes: see op_of_sequence.
  void note_sequence_number();

  /// How a tensor looks at its storage; the caller fills in the value.
  [[nodiscard]] View look(const at::Tensor& tensor) { return geometry_.add(tensor); }

  [[nodiscard]] plan::OpId size() const noexcept { return static_cast<plan::OpId>(calls_.size()); }
  [[nodiscard]] const Call& call(plan::OpId op) const { return calls_[plan::at(op)]; }
  [[nodiscard]] const Argument& argument(const Call& call, std::size_t i) const {
    return arguments_[plan::at(call.arguments) + i];
  }
  /// The arguments that have come since a mark.
  [[nodiscard]] std::span<const Argument> arguments_since(const Mark& mark) const {
    return std::span(arguments_).subspan(mark.arguments);
  }
  [[nodiscard]] const OutputSlot& output_slot(const Call& call, std::size_t i) const {
    return slots_[plan::at(call.outputs) + i];
  }
  [[nodiscard]] const View& view(std::int32_t index) const { return views_[plan::at(index)]; }
  [[nodiscard]] const c10::IValue& constant(std::int32_t index) const { return constants_[plan::at(index)]; }
  /// What a call draws, one for each generator.
  [[nodiscard]] std::span<const Draw> draws(const Call& call) const {
    if (call.random < 0) return {};
    return std::span(draws_).subspan(plan::at(call.random), static_cast<std::size_t>(call.draws));
  }
  /// Its operator. Throws Error where that has been removed since the recording began, with its library.
  [[nodiscard]] c10::OperatorHandle operator_of(const Call& call) const;
  /// The state of the thread that it ran in.
  [[nodiscard]] const CallState& state(const Call& call) const { return states_[static_cast<std::size_t>(call.state)]; }
  [[nodiscard]] const GeometryPool& geometry() const noexcept { return geometry_; }

  [[nodiscard]] std::uint64_t signature(plan::OpId op) const { return signatures_[plan::at(op)]; }
  [[nodiscard]] std::span<const std::uint64_t> signatures() const noexcept { return signatures_; }
  /// A hash of all signatures so far, in their order.
  [[nodiscard]] std::uint64_t chain() const noexcept { return chain_; }
  /// As measured; 1 when nobody did.
  [[nodiscard]] double seconds(plan::OpId op) const {
    return plan::at(op) < seconds_.size() ? static_cast<double>(seconds_[plan::at(op)]) : 1.0;
  }
  /// The call whose autograd node has this sequence number, or kNoOp. Only where the numbers have been noted.
  [[nodiscard]] plan::OpId op_of_sequence(std::uint64_t number) const;

  /// The path of ModuleScope in which the operator ran.
  [[nodiscard]] const std::string& module_of(plan::OpId op) const {
    return module_names_[plan::at(modules_[plan::at(op)])];
  }
  /// What messages call an operator: its name, module and number.
  [[nodiscard]] std::string describe(plan::OpId op) const;
  /// Types and sizes of the tensors that a call takes, for messages.
  [[nodiscard]] std::string inputs_of(const Call& call) const;

 private:
  void note_module();
  std::int16_t note_state(const OperatorTraits& traits, c10::DispatchKeySet keys);

  std::vector<Call> calls_;
  std::vector<std::uint64_t> signatures_;
  std::uint64_t chain_ = 0;
  std::uint64_t removals_ = operator_removals();  // when the recording began
  std::vector<std::int64_t> signed_words_;        // scratch memory of sign()
  std::vector<std::int32_t> modules_;             // by OpId, in module_names_
  std::vector<std::string> module_names_{std::string()};
  std::int32_t module_ = 0;  // of the newest call
  std::vector<Argument> arguments_;
  std::vector<OutputSlot> slots_;
  std::vector<View> views_;
  std::vector<c10::IValue> constants_;
  std::vector<Draw> draws_;
  std::vector<CallState> states_;  // each once; a step has few
  GeometryPool geometry_;
  std::vector<std::uint64_t> sequence_numbers_;  // by OpId, of the node after its own; once noted
  std::vector<float> seconds_;                   // by OpId, once noted
};

}  // namespace snug::record
