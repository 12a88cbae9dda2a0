#include "snug/record/lossy_values.h"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <unordered_set>

#include "snug/plan/step/operator_name.h"
#include "snug/plan/step/saves.h"
#include "snug/record/tape.h"

namespace snug::record {
namespace {

/// Without an overload. What their backward does with a saved tensor is linear in it, or smooth; some save nothing of
/// what they read or make, and stand beside those that do. In place, they do the same.
const std::unordered_set<std::string_view>& known_operators() {
  static const std::unordered_set<std::string_view> known{
      // products
      "aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm", "aten::addbmm", "aten::addmv", "aten::mv",
      "aten::linear", "aten::mkldnn_linear", "aten::convolution", "aten::_convolution", "aten::mkldnn_convolution",
      "aten::mul", "aten::addcmul", "snug::packed_linear",
      // norms of what they read
      "aten::native_layer_norm", "aten::native_group_norm", "aten::native_batch_norm", "aten::_native_batch_norm_legit",
      "aten::_native_batch_norm_legit_functional", "aten::_fused_rms_norm", "snug::rms_norm",
      // activations
      "aten::relu", "aten::threshold", "aten::gelu", "aten::silu", "aten::sigmoid", "aten::tanh", "aten::hardtanh",
      "aten::hardswish", "aten::hardsigmoid", "aten::leaky_relu", "aten::elu", "aten::softplus", "aten::mish",
      "aten::sin", "aten::cos", "aten::exp", "aten::square", "snug::activated_linear", "snug::gated",
      // attention
      "aten::_softmax", "aten::_safe_softmax", "aten::_log_softmax", "aten::nll_loss_forward",
      "aten::nll_loss2d_forward", "aten::_scaled_dot_product_flash_attention_for_cpu", "snug::attention",
      "snug::rotate",
      // dropout
      "aten::native_dropout", "aten::bernoulli", "snug::dropout", "snug::times_bits",
      // sums, copies and choices of what there is
      "aten::add", "aten::sub", "aten::rsub", "aten::neg", "aten::sum", "aten::mean", "aten::cat", "aten::stack",
      "aten::clone", "aten::_to_copy", "aten::copy", "aten::embedding", "aten::index_select", "aten::constant_pad_nd",
      "aten::repeat", "aten::roll", "aten::flip", "aten::avg_pool2d", "aten::_adaptive_avg_pool2d",
      "aten::upsample_nearest2d", "aten::upsample_bilinear2d", "aten::mse_loss"};
  return known;
}

/// Those that save what they read and are no good with numbers nearby, but do not save what they make.
const std::unordered_set<std::string_view>& known_makers() {
  static const std::unordered_set<std::string_view> known{"aten::div",
                                                          "aten::where",
                                                          "aten::masked_fill",
                                                          "aten::abs",
                                                          "aten::clamp",
                                                          "aten::max_pool2d_with_indices",
                                                          "aten::mkldnn_max_pool2d"};
  return known;
}

/// In place, an operator does the same.
std::string_view name_of(const Call& call) {
  std::string_view name = plan::without_overload(call.traits->name);
  if (name.ends_with('_')) name.remove_suffix(1);
  return name;
}

/// Those that save what they make.
const std::unordered_set<std::string_view>& savers_of_results() {
  static const std::unordered_set<std::string_view> known{
      "aten::relu",         "aten::sigmoid",
      "aten::tanh",         "aten::exp",
      "aten::_softmax",     "aten::_safe_softmax",
      "aten::_log_softmax", "aten::_scaled_dot_product_flash_attention_for_cpu",
      "snug::attention"};
  return known;
}

bool is_attention(std::string_view name) { return name.find("attention") != std::string_view::npos; }

/// Whether backward asks on which side of a threshold a saved number is, and jumps there (elu: SELU's does): rounding
/// may bring it across.
bool compares(std::string_view name) {
  return name == "aten::relu" || name == "aten::leaky_relu" || name == "aten::hardtanh" || name == "aten::threshold" ||
         name == "aten::hardsigmoid" || name == "aten::hardswish" || name == "aten::elu";
}

/// What an operator has saved: what it reads, or what it has made.
enum class By : std::uint8_t { Reading, Making };

/// Whether numbers so near are enough for the backward of an operator that has saved them. Attention takes the
/// exponential of products of what it reads, beside a sum of the exact ones; a log-softmax that of its result.
bool is_near_enough(std::string_view name, By by, plan::Codec codec) {
  const bool read_by_attention = is_attention(name) && by == By::Reading;
  switch (codec) {
    case plan::Codec::BFloat16:
      return true;
    case plan::Codec::Float8:
      return !read_by_attention && name != "aten::_log_softmax";
    case plan::Codec::Int8:
      return !read_by_attention && !compares(name);
    case plan::Codec::Int4:
      return !read_by_attention && name != "aten::_log_softmax" && !compares(name);
    case plan::Codec::None:
    case plan::Codec::Zeros:
    case plan::Codec::Bits:
    case plan::Codec::Narrow:
    case plan::Codec::Exponents:
      break;
  }
  throw std::logic_error("lossy values: a codec that gives back the same bits asks nobody");
}

}  // namespace

LossyValues::LossyValues(const Tape& tape, const std::vector<plan::Event>& events, plan::Codec codec)
    : tape_(tape),
      codec_(codec),
      saved_by_known_(plan::at(tape.flow().values()), 0),
      refused_(saved_by_known_.size(), 0) {
  for (const plan::Event& event : events) {
    if (event.kind == plan::Event::Kind::Unpack) refused_[plan::at(event.id)] = 1;
  }
  for (const plan::SavedBetween& saved : plan::saves_between_operators(events)) note(saved);
}

/// What neither of the operators around it can have saved somebody else has: a function that differentiates for itself,
/// and whose backward nobody knows.
void LossyValues::note(const plan::SavedBetween& saved) {
  const plan::Dataflow& flow = tape_.flow();
  std::ptrdiff_t unexplained = saved.times;
  const auto by = [&](plan::OpId op, By how, bool known) {
    const bool may = known && is_near_enough(name_of(tape_.calls().call(op)), how, codec_);
    (may ? saved_by_known_ : refused_)[plan::at(saved.value)] = 1;
  };
  const auto by_reading = [&](plan::OpId op) {
    const std::ptrdiff_t reads = plan::times_read(flow, op, saved.value);
    if (reads > 0) by(op, By::Reading, known_operators().contains(name_of(tape_.calls().call(op))));
    unexplained -= reads;
  };
  by_reading(saved.next);
  if (saved.last != plan::kNoOp) {
    const std::string_view name = name_of(tape_.calls().call(saved.last));
    if (plan::makes(flow, saved.last, saved.value) && !known_makers().contains(name)) {
      const bool saves = savers_of_results().contains(name);
      if (saves || !known_operators().contains(name)) by(saved.last, By::Making, saves);
      unexplained -= saves ? 1 : 0;
    } else if (name.starts_with("snug::")) {  // written by hand, and known
      by_reading(saved.last);
    }
  }
  if (unexplained > 0) refused_[plan::at(saved.value)] = 1;
}

bool LossyValues::allows(plan::OpId op, std::size_t output) const {
  const plan::ValueId value = tape_.flow().outputs(op)[output].value;
  const Call& call = tape_.calls().call(op);
  const OutputSlot& slot = tape_.calls().output_slot(call, output);
  // What it makes beside its result is for its own backward: sums of exponentials, say. What is written in place need
  // not be all of its storage.
  const bool is_the_result = !slot.is_argument && slot.position == 0 && call.traits->scratch_result != 0;
  return is_the_result && (slot.dtype == at::kFloat || slot.dtype == at::kBFloat16) &&
         tape_.values().saved_as(value) == slot.dtype && saved_by_known_[plan::at(value)] != 0 &&
         refused_[plan::at(value)] == 0;
}

}  // namespace snug::record
