#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "snug/base/bytes.h"
#include "snug/memory/codec.h"

// The lossy codecs, of fp32 (element: 4) or bf16 numbers (2): see codec.h.
namespace snug::memory {

/// That so many numbers take, whatever they are.
[[nodiscard]] Bytes rounded_code_bytes(Codec codec, std::int64_t numbers);
[[nodiscard]] Bytes rounded_bytes(Codec codec, std::size_t element, std::span<const std::byte> contents);
[[nodiscard]] bool encode_rounded(Codec codec, std::size_t element, std::span<const std::byte> contents,
                                  std::span<std::byte> to);
void decode_rounded(Codec codec, std::size_t element, std::span<const std::byte> from, std::span<std::byte> contents);

}  // namespace snug::memory
