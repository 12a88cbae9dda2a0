#include "snug/record/call_log.h"

#include <ATen/SequenceNumber.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/hash.h"
#include "snug/base/lower_case.h"
#include "snug/base/module_scope.h"
#include "snug/record/denormals.h"

namespace snug::record {

using plan::at;

CallLog::CallLog() {
  constexpr std::size_t kTypicalOps = 1024;
  calls_.reserve(kTypicalOps);
}

void CallLog::roll_back(const Mark& mark) {
  arguments_.resize(mark.arguments);
  views_.resize(mark.views);
  constants_.resize(mark.constants);
  geometry_.truncate(mark.geometry);
  draws_.erase(draws_.begin() + static_cast<std::ptrdiff_t>(mark.draws), draws_.end());
}

void CallLog::add_constant(const c10::IValue& value) {
  arguments_.push_back({Argument::Kind::Constant, static_cast<std::int32_t>(constants_.size()), 1});
  constants_.push_back(value);
  if (!value.isList()) return;
  const c10::List<c10::IValue> list = value.toList();
  constexpr int kOurs = 3;  // the stack's, the constant's and this one
  // TorchScript hands over its own lists, and may change them.
  if (list.use_count() > kOurs) constants_.back() = list.copy();
}

void CallLog::add_view(const at::Tensor& tensor, plan::ValueId value) {
  views_.push_back(look(tensor));
  views_.back().value = value;
}

void CallLog::add_tensors(Argument::Kind kind, std::int32_t first) {
  arguments_.push_back({kind, first, next_view() - first});
}

void CallLog::add_random_state(Call& call, RandomState state) {
  if (call.random < 0) call.random = static_cast<std::int32_t>(draws_.size());
  ++call.draws;
  const std::lock_guard lock(state.generator.mutex());
  const std::uint64_t position = position_of(state.generator);
  draws_.push_back({.from = std::move(state), .to = position});
}

void CallLog::note_drawn(const Call& call) {
  for (std::int16_t i = 0; i < call.draws; ++i) {
    Draw& draw = draws_[at(call.random + i)];
    const std::lock_guard lock(draw.from.generator.mutex());
    const std::uint64_t before = std::exchange(draw.to, position_of(draw.from.generator));
    draw.moved = draw.to != before;
  }
}

void CallLog::forget_unmoved(Call& call) {
  if (call.random < 0) return;
  std::erase_if(draws_, [](const Draw& draw) { return !draw.moved; });  // only the newest call has any
  call.draws = static_cast<std::int16_t>(draws_.size() - at(call.random));
  if (call.draws == 0) call.random = -1;
}

std::int16_t CallLog::note_state(const OperatorTraits& traits, c10::DispatchKeySet keys) {
  using Of = GlobalSettings::Of;
  const Of kernel = traits.reads != OperatorTraits::Reads::Anything    ? Of::Elementwise
                    : keys.has_backend(c10::BackendComponent::CUDABit) ? Of::Accelerators
                                                                       : Of::TheCpu;
  CallState now{.keys = keys,
                .grad_mode = c10::GradMode::is_enabled(),
                .denormals = denormals(),
                .autocast = std::nullopt,
                .settings = GlobalSettings::now(kernel)};
  if (AutocastState::any_enabled()) now.autocast = AutocastState::now();
  const auto known = std::find(states_.begin(), states_.end(), now);
  const auto index = static_cast<std::int16_t>(known - states_.begin());
  if (known == states_.end()) states_.push_back(now);
  return index;
}

c10::OperatorHandle CallLog::operator_of(const Call& call) const {
  if (operator_removals() == removals_) return call.op;
  const std::string& name = call.traits->name;  // traits live as long as the process
  const std::size_t dot = name.find('.');
  const auto found = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
  if (found) return *found;
  throw Error(
      fmt::format("replay: the operator {} has been removed since the forward pass, and backward needs it again; keep "
                  "its library until then",
                  name));
}

std::uint64_t CallLog::sign(const OperatorTraits& traits, c10::function_ref<bool(plan::ValueId)> was_there) {
  const auto add = [this](std::int64_t word) { signed_words_.push_back(word); };  // faster than insert() for a few
  signed_words_.clear();
  add(static_cast<std::int64_t>(traits.hash));
  for (std::size_t i = arguments_.size() - traits.arguments.size(); i < arguments_.size(); ++i) {
    const Argument& a = arguments_[i];
    if (a.kind == Argument::Kind::Constant) continue;
    for (std::int32_t k = 0; k < a.count; ++k) {
      const View& view = views_[at(a.index + k)];
      // A batch may be cut out of a larger tensor, and a queue written, elsewhere in each step.
      const bool placed = view.value == plan::kNoValue || !was_there(view.value);
      const auto sizes = geometry_.sizes(view);
      add(view.value);
      add(static_cast<std::int64_t>(view.dtype));
      add(placed ? view.offset : -1);
      add(static_cast<std::int64_t>(sizes.size()));
      for (const std::int64_t size : sizes) add(size);
      // The same on another device has a plan of its own.
      if (view.device >= 0) {
        add(static_cast<std::int64_t>(view.keys.highestBackendKey()));
        add(view.device);
      }
    }
  }
  return hash_64(std::as_bytes(std::span(signed_words_)));
}

plan::OpId CallLog::add(Call call, std::uint64_t signature) {
  const plan::OpId op = size();
  signatures_.push_back(signature);
  const std::array<std::uint64_t, 2> words{chain_, signature};
  chain_ = hash_64(std::as_bytes(std::span(words)));
  calls_.push_back(std::move(call));
  note_module();
  return op;
}

void CallLog::note_module() {
  const std::string& now = current_module();
  if (module_names_[at(module_)] != now) {
    const auto known = std::ranges::find(module_names_, now);
    module_ = static_cast<std::int32_t>(known - module_names_.begin());
    if (known == module_names_.end()) module_names_.push_back(now);
  }
  modules_.push_back(module_);
}

void CallLog::note_seconds(double seconds) {
  seconds_.resize(calls_.size() - 1, 1.0F);
  seconds_.push_back(static_cast<float>(seconds));
}

void CallLog::note_sequence_number() {
  sequence_numbers_.resize(calls_.size() - 1, 0);
  sequence_numbers_.push_back(at::sequence_number::peek());
}

plan::OpId CallLog::op_of_sequence(std::uint64_t number) const {
  // Nodes take their number just before their operator runs.
  const auto found = std::ranges::find(sequence_numbers_, number + 1);
  return found == sequence_numbers_.end() ? plan::kNoOp : static_cast<plan::OpId>(found - sequence_numbers_.begin());
}

std::string CallLog::describe(plan::OpId op) const {
  const std::string& module = module_of(op);
  return fmt::format("{} (operator {}{})", call(op).traits->name, op, module.empty() ? "" : " in " + module);
}

std::string CallLog::inputs_of(const Call& call) const {
  constexpr std::size_t kLongest = 200;  // lists have hundreds
  std::string text;
  for (std::size_t i = 0; i < call.traits->arguments.size(); ++i) {
    const Argument& a = argument(call, i);
    if (a.kind == Argument::Kind::Constant) continue;
    for (std::int32_t k = 0; k < a.count; ++k) {
      const View& v = views_[at(a.index + k)];
      if (v.value == plan::kNoValue) continue;
      if (!text.empty()) text += ", ";
      if (text.size() > kLongest) return text + "...";
      fmt::format_to(std::back_inserter(text), "{}[{}]", in_lower_case(c10::toString(v.dtype)),
                     fmt::join(geometry_.sizes(v), ", "));
    }
  }
  return text;
}

}  // namespace snug::record
