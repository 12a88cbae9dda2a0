#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "snug/base/bytes.h"
#include "snug/memory/codec.h"

// Codecs for memory that the host cannot read: operators on tensors of any device, in its current stream. Contents and
// what they are encoded to are bytes, one after the other. The caller sees to it that nobody takes the operators for
// the program's. Beside what they write these take memory of the device while they run, and the same each time for as
// many contents: a piece is done at a time, a sixteenth of them, but no fewer than 256 Ki numbers.
namespace snug::memory {

/// How many bytes contents take by Narrow, integers of 4 or 8 bytes: code_bytes() says it of what does not depend on
/// them. The host waits.
[[nodiscard]] Bytes narrowed_bytes(std::size_t element, const at::Tensor& contents);

/// Writes them to the front of `to`; by Narrow with as many bytes each as it has room for. What Bits and the lossy
/// codecs write has the bits that encode() of codec.h gives it, but for the sign of a zero in a scale, where the device
/// divides as the CPU does. False, and what is in `to` means nothing, where they cannot be written so, or do not fit,
/// for which the host waits.
[[nodiscard]] bool encode(Codec codec, std::size_t element, const at::Tensor& contents, const at::Tensor& to);

/// Writes them back to `contents`, which are as many as they were.
void decode(Codec codec, std::size_t element, const at::Tensor& from, const at::Tensor& contents);

}  // namespace snug::memory
