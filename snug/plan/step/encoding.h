#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/action.h"

namespace snug::plan {

/// A codec that suits what a value had in the recorded step, and what it takes: as measured, with something on top of
/// the bytes, as other steps have other contents. Where those do not fit, the value is kept.
struct Encoding {
  Codec codec = Codec::None;
  std::int32_t element = 0;  ///< bytes of one of its numbers
  Bytes content_bytes = 0;   ///< that the encoded contents may take
  Bytes bytes = 0;           ///< that the step takes for them, as the allocator rounds them
  double encode_seconds = 0, decode_seconds = 0;
  Bytes encode_scratch = 0, decode_scratch = 0;  ///< that the step takes beside contents and code, meanwhile
  friend bool operator==(const Encoding&, const Encoding&) = default;
};

/// Those of a value, each with a codec of its own.
using Encodings = std::vector<Encoding>;

/// The one with this codec; nullptr where there is none.
[[nodiscard]] inline const Encoding* find_encoding(const Encodings& encodings, Codec codec) {
  const auto found = std::ranges::find(encodings, codec, &Encoding::codec);
  return found != encodings.end() ? &*found : nullptr;
}

/// What becomes of a value for which a plan says `action`: one that was made for other contents may compress what
/// cannot be, which is kept.
[[nodiscard]] inline Action as_possible(Action action, const Encodings& encodings) {
  return !is_compressed(action) || find_encoding(encodings, action.codec) != nullptr ? action : kKeep;
}

}  // namespace snug::plan
