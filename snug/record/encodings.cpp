#include "snug/record/encodings.h"

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "snug/base/clock.h"
#include "snug/record/lossy_values.h"
#include "snug/record/tape.h"

namespace snug::record {
namespace {

constexpr Bytes kSmallestWorthIt = 256_KiB;        // what smaller ones have differs more from step to step
constexpr Bytes kOnTopOfZeros = 16, kOnTop = 128;  // a 16th of what there is now, or a 128th

std::vector<plan::Codec> candidates_for(c10::ScalarType type) {
  using plan::Codec;
  if (type == at::kBool) return {Codec::Bits};
  if (type == at::kLong || type == at::kInt) return {Codec::Narrow};
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

constexpr std::size_t kTried = 512_KiB;  // of contents, to see how long it takes: it is beside all budgets

class Measurement {
 public:
  explicit Measurement(const memory::DeviceMemory& memory) : memory_(memory) {}

  /// With the one of these that takes the fewest bytes, where they are fewer by a tenth.
  std::optional<plan::Encoding> best_of(const std::vector<plan::Codec>& codecs, std::span<const std::byte> contents,
                                        std::size_t element) {
    plan::Encoding found{.bytes = memory_.rounded(std::ssize(contents)) * 9 / 10};
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

void measure_encodings(const Tape& tape, const memory::DeviceMemory& memory, plan::StepGraph& graph) {
  if (!memory.device().is_cpu()) return;
  Measurement measurement(memory);
  std::optional<LossyValues> lossy;
  if (graph.lossy != plan::Codec::None) lossy.emplace(tape, graph.events, graph.lossy);
  const ValueStore& values = tape.values();
  const CallLog& calls = tape.calls();
  for (plan::OpId op = 0; op < tape.flow().ops(); ++op) {
    const auto outputs = tape.flow().outputs(op);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const plan::ValueId v = outputs[i].value;
      plan::ValueInfo& info = graph.values[plan::at(v)];
      info.encodings = values.encodings(v);  // where the step began as another one, by the plan of that
      if (!info.saved || tape.flow().is_leaf(v) || !values.device(v).is_cpu() || !values.storage(v)) continue;
      const Bytes bytes = values.nbytes(v);
      if (info.bytes < kSmallestWorthIt || static_cast<Bytes>(values.storage(v).nbytes()) < bytes) continue;
      const std::span contents(static_cast<const std::byte*>(values.storage(v).data()),
                               static_cast<std::size_t>(bytes));
      const c10::ScalarType type = calls.output_slot(calls.call(op), i).dtype;
      info.encodings.clear();
      const auto note = [&](const std::vector<plan::Codec>& codecs) {
        if (const auto found = measurement.best_of(codecs, contents, c10::elementSize(type)))
          info.encodings.push_back(*found);
      };
      note(candidates_for(type));
      if (lossy && lossy->allows(op, i)) note({graph.lossy});
    }
  }
}

}  // namespace snug::record
