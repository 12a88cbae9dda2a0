#include "snug/record/encodings.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "snug/base/clock.h"
#include "snug/memory/codec.h"
#include "snug/record/tape.h"

namespace snug::record {
namespace {

constexpr Bytes kSmallestWorthIt = 256_KiB;        // what smaller ones have differs more from step to step
constexpr Bytes kOnTopOfZeros = 16, kOnTop = 128;  // a 16th of what there is now, or a 128th

struct Candidate {
  memory::Codec codec;
  plan::Codec planned;
};
constexpr Candidate kBits{memory::Codec::Bits, plan::Codec::Bits}, kNarrow{memory::Codec::Narrow, plan::Codec::Narrow},
    kZeros{memory::Codec::Zeros, plan::Codec::Zeros}, kExponents{memory::Codec::Exponents, plan::Codec::Exponents};

std::vector<Candidate> candidates_for(c10::ScalarType type) {
  if (type == at::kBool) return {kBits};
  if (type == at::kLong || type == at::kInt) return {kNarrow};
  if (type == at::kFloat || type == at::kBFloat16) return {kZeros, kExponents};
  return c10::isFloatingType(type) ? std::vector{kZeros} : std::vector<Candidate>();
}

/// With something on top for what other steps have.
Bytes to_plan_with(const Candidate& candidate, Bytes needed) {
  const bool depends_on_numbers =
      candidate.codec == memory::Codec::Zeros || candidate.codec == memory::Codec::Exponents;
  return needed +
         (depends_on_numbers ? needed / (candidate.codec == memory::Codec::Zeros ? kOnTopOfZeros : kOnTop) : 0);
}

constexpr std::size_t kTried = 512_KiB;  // of contents, to see how long it takes: it is beside all budgets

class Measurement {
 public:
  explicit Measurement(const memory::DeviceMemory& memory) : memory_(memory) {}

  std::optional<plan::Encoding> of(std::span<const std::byte> contents, c10::ScalarType type) {
    const Bytes all = std::ssize(contents);
    const std::size_t element = c10::elementSize(type);
    std::optional<Candidate> candidate;
    plan::Encoding found{.bytes = memory_.rounded(all) * 9 / 10};
    for (const Candidate& possible : candidates_for(type)) {
      const Bytes planned = to_plan_with(possible, memory::encoded_bytes(possible.codec, element, contents));
      const Bytes bytes = memory_.rounded(planned);
      if (bytes >= found.bytes) continue;
      candidate = possible;
      found = {.codec = possible.planned,
               .element = static_cast<std::int32_t>(element),
               .content_bytes = planned,
               .bytes = bytes};
    }
    if (!candidate) return std::nullopt;
    // A piece, once, as a step does it: the contents are in no cache any more.
    const std::span some = contents.first(std::min(contents.size(), kTried));
    const double began = monotonic_seconds();
    const bool fits = memory::encode(candidate->codec, element, some, encoded_);
    const double encoded = monotonic_seconds();
    if (!fits) return std::nullopt;  // dense where it begins
    memory::decode(candidate->codec, element, encoded_, std::span(decoded_).first(some.size()));
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

void measure_encodings(const Tape& tape, const memory::DeviceMemory& memory, plan::StepGraph& graph) {
  if (!memory.device().is_cpu()) return;
  Measurement measurement(memory);
  const ValueStore& values = tape.values();
  const CallLog& calls = tape.calls();
  for (plan::OpId op = 0; op < tape.flow().ops(); ++op) {
    const auto outputs = tape.flow().outputs(op);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const plan::ValueId v = outputs[i].value;
      plan::ValueInfo& info = graph.values[plan::at(v)];
      if (!info.saved || tape.flow().is_leaf(v) || !values.device(v).is_cpu() || !values.storage(v)) continue;
      const Bytes bytes = values.nbytes(v);
      if (info.bytes < kSmallestWorthIt || static_cast<Bytes>(values.storage(v).nbytes()) < bytes) continue;
      const std::span contents(static_cast<const std::byte*>(values.storage(v).data()),
                               static_cast<std::size_t>(bytes));
      info.encoding = measurement.of(contents, calls.output_slot(calls.call(op), i).dtype);
    }
  }
}

}  // namespace snug::record
