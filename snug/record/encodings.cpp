#include "snug/record/encodings.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/byte_tensor.h"
#include "snug/memory/tensor_codec.h"
#include "snug/record/codec_trial.h"
#include "snug/record/lossy_values.h"
#include "snug/record/recording_key.h"
#include "snug/record/tape.h"

namespace snug::record {
namespace {

constexpr Bytes kSmallestWorthIt = 256_KiB;        // what smaller ones have differs more from step to step
constexpr Bytes kOnTopOfZeros = 16, kOnTop = 128;  // a 16th of what there is now, or a 128th

bool is_integer(c10::ScalarType type) { return type == at::kLong || type == at::kInt; }

std::vector<plan::Codec> candidates_for(c10::ScalarType type) {
  using plan::Codec;
  if (type == at::kBool) return {Codec::Bits};
  if (is_integer(type)) return {Codec::Narrow};
  if (type == at::kFloat || type == at::kBFloat16) return {Codec::Zeros, Codec::Exponents};
  return c10::isFloatingType(type) ? std::vector{Codec::Zeros} : std::vector<Codec>();
}

/// With something on top for what other steps have.
Bytes to_plan_with(plan::Codec codec, Bytes needed) {
  switch (codec) {
    case plan::Codec::Zeros:
      return needed + needed / kOnTopOfZeros;
    case plan::Codec::Exponents:
      return needed + needed / kOnTop;
    case plan::Codec::Bits:
    case plan::Codec::Narrow:
    case plan::Codec::BFloat16:
    case plan::Codec::Float8:
    case plan::Codec::Int8:
    case plan::Codec::Int4:
    case plan::Codec::None:
      break;
  }
  return needed;
}

/// That an encoding of so many may take: less by a tenth.
Bytes most_bytes(Bytes rounded) { return rounded * 9 / 10; }

constexpr std::size_t kTried = 512_KiB;  // of contents, to see how long it takes: it is beside all budgets

/// Of contents of the CPU's.
class Measurement {
 public:
  explicit Measurement(const memory::DeviceMemory& memory) : memory_(memory) {}

  /// With the one of these that takes the fewest bytes, where they are fewer by a tenth.
  std::optional<plan::Encoding> best_of(const std::vector<plan::Codec>& codecs, std::span<const std::byte> contents,
                                        std::size_t element) {
    plan::Encoding found{.bytes = most_bytes(memory_.rounded(std::ssize(contents)))};
    for (const plan::Codec possible : codecs) {
      const Bytes planned = to_plan_with(possible, memory::encoded_bytes(codec_of(possible), element, contents));
      const Bytes bytes = memory_.rounded(planned);
      if (bytes >= found.bytes) continue;
      found = {
          .codec = possible, .element = static_cast<std::int32_t>(element), .content_bytes = planned, .bytes = bytes};
    }
    if (found.codec == plan::Codec::None) return std::nullopt;
    const memory::Codec codec = codec_of(found.codec);
    // A piece, once, as a step does it: the contents are in no cache any more.
    const std::span some = contents.first(std::min(contents.size(), kTried));
    const double began = monotonic_seconds();
    const bool fits = memory::encode(codec, element, some, encoded_);
    const double encoded = monotonic_seconds();
    if (!fits) return std::nullopt;  // dense where it begins
    memory::decode(codec, element, encoded_, std::span(decoded_).first(some.size()));
    const double decoded = monotonic_seconds();
    const double pieces = static_cast<double>(contents.size()) / static_cast<double>(some.size());
    found.encode_seconds = pieces * (encoded - began);
    found.decode_seconds = pieces * (decoded - encoded);
    return found;
  }

 private:
  const memory::DeviceMemory& memory_;
  std::vector<std::byte> encoded_ = std::vector<std::byte>(2 * kTried), decoded_ = std::vector<std::byte>(kTried);
};

/// By Narrow. The host waits for the device.
Bytes narrowed(const c10::Storage& storage, Bytes bytes, std::size_t element) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below;
  const c10::impl::ExcludeDispatchKeyGuard unseen(kRecordingKey);
  return memory::narrowed_bytes(element, memory::byte_tensor(storage, bytes));
}

}  // namespace

memory::Codec codec_of(plan::Codec codec) {
  switch (codec) {
    case plan::Codec::Zeros:
      return memory::Codec::Zeros;
    case plan::Codec::Bits:
      return memory::Codec::Bits;
    case plan::Codec::Narrow:
      return memory::Codec::Narrow;
    case plan::Codec::Exponents:
      return memory::Codec::Exponents;
    case plan::Codec::BFloat16:
      return memory::Codec::BFloat16;
    case plan::Codec::Float8:
      return memory::Codec::Float8;
    case plan::Codec::Int8:
      return memory::Codec::Int8;
    case plan::Codec::Int4:
      return memory::Codec::Int4;
    case plan::Codec::None:
      break;
  }
  throw std::logic_error("encodings: what is kept as it is has no codec");
}

void MeasuredEncodings::measure(const Tape& tape, Taken taken) noexcept {
  if (!memory_.device().is_cpu()) return;
  try {
    look_at(tape, taken);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the process has no memory, and it has no encoding
  }
}

bool MeasuredEncodings::depends_on_contents(const Tape& tape, Taken saved) const {
  if (memory_.device().is_cpu() || measured_.contains(saved.value)) return false;
  const auto of = contents(tape, saved);
  return of && of->storage && is_integer(of->type);
}

/// Of those that are worth it.
std::optional<MeasuredEncodings::Contents> MeasuredEncodings::contents(const Tape& tape, Taken taken) const {
  const plan::ValueId value = taken.value;
  const ValueStore& values = tape.values();
  if (tape.flow().is_leaf(value) || values.device(value) != memory_.device()) return std::nullopt;
  const Bytes bytes = values.nbytes(value);
  const c10::Storage& storage = values.storage(value);
  const bool is_whole = !storage || static_cast<Bytes>(storage.nbytes()) >= bytes;  // nobody has taken it away
  if (taken.bytes < kSmallestWorthIt || !is_whole || !values.all_written(value)) return std::nullopt;
  const plan::OpId op = tape.flow().producer(value);
  const auto outputs = tape.flow().outputs(op);
  const auto output = std::ranges::find(outputs, value, &plan::Output::value) - outputs.begin();
  const CallLog& calls = tape.calls();
  return Contents{storage, bytes, calls.output_slot(calls.call(op), static_cast<std::size_t>(output)).dtype};
}

void MeasuredEncodings::look_at(const Tape& tape, Taken taken) {
  if (measured_.contains(taken.value)) return;
  const auto of = contents(tape, taken);
  if (!of) return;
  if (!memory_.device().is_cpu()) {
    plan::Encodings& found = measured_[taken.value];
    try {
      found = of_accelerator(*of);
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): there is no memory for it, and it has none
    }
  } else if (of->storage) {
    measured_[taken.value] = of_cpu(*of);
  }
}

plan::Encodings MeasuredEncodings::of_cpu(const Contents& of) const {
  const std::span contents(static_cast<const std::byte*>(of.storage.data()), static_cast<std::size_t>(of.bytes));
  plan::Encodings found;
  Measurement measurement(memory_);
  const auto try_these = [&](const std::vector<plan::Codec>& codecs) {
    if (const auto best = measurement.best_of(codecs, contents, c10::elementSize(of.type))) found.push_back(*best);
  };
  try_these(candidates_for(of.type));
  if (may_be_lossy(of.type)) try_these({lossy_});
  return found;
}

plan::Encodings MeasuredEncodings::of_accelerator(const Contents& of) const {
  const std::size_t element = c10::elementSize(of.type);
  plan::Encodings found;
  const auto note = [&](plan::Codec codec, std::optional<Bytes> bytes) {
    if (!bytes || memory_.rounded(*bytes) >= most_bytes(memory_.rounded(of.bytes))) return;
    found.push_back({.codec = codec,
                     .element = static_cast<std::int32_t>(element),
                     .content_bytes = *bytes,
                     .bytes = memory_.rounded(*bytes)});
  };
  for (const plan::Codec possible : candidates_for(of.type)) {
    const bool must_look = possible == plan::Codec::Narrow;
    if (must_look && !of.storage) continue;
    note(possible, must_look ? narrowed(of.storage, of.bytes, element)
                             : memory::code_bytes(codec_of(possible), element, of.bytes));
  }
  if (may_be_lossy(of.type)) note(lossy_, memory::code_bytes(codec_of(lossy_), element, of.bytes));
  return found;
}

void MeasuredEncodings::note(const Tape& tape, plan::StepGraph& graph) {
  std::optional<LossyValues> lossy;
  if (lossy_ != plan::Codec::None) lossy.emplace(tape, graph.events, lossy_);
  for (plan::OpId op = 0; op < tape.flow().ops(); ++op) {
    const auto outputs = tape.flow().outputs(op);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const plan::ValueId v = outputs[i].value;
      plan::ValueInfo& info = graph.values[plan::at(v)];
      info.encodings = tape.values().encodings(v);  // where the step began as another one, by the plan of that
      if (!info.saved) continue;
      look_at(tape, {v, info.bytes});
      const auto found = measured_.find(v);
      if (found == measured_.end() || found->second.empty()) continue;
      info.encodings = found->second;
      if (!lossy || !lossy->allows(op, i))
        std::erase_if(info.encodings, [](const plan::Encoding& e) { return plan::is_lossy(e.codec); });
    }
  }
}

void MeasuredEncodings::try_all(const Tape& tape, plan::StepGraph& graph) const {
  if (memory_.device().is_cpu()) return;
  for (const auto& [value, unused] : measured_) {
    std::erase_if(graph.values[plan::at(value)].encodings, [&](plan::Encoding& encoding) {
      const auto trial = codec_trial(memory_, codec_of(encoding.codec), static_cast<std::size_t>(encoding.element),
                                     tape.values().nbytes(value), encoding.content_bytes);
      if (!trial) return true;
      encoding.encode_seconds = trial->encode_seconds;
      encoding.decode_seconds = trial->decode_seconds;
      encoding.encode_scratch = trial->encode_scratch;
      encoding.decode_scratch = trial->decode_scratch;
      return false;
    });
  }
}

}  // namespace snug::record
