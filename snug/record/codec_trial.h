#pragma once

#include <cstddef>
#include <optional>

#include "snug/base/bytes.h"
#include "snug/memory/codec.h"
#include "snug/memory/device_memory.h"

namespace snug::record {

/// What codecs take on an accelerator, whatever the contents are (see memory/tensor_codec.h), by its clock.
struct CodecTrial {
  double encode_seconds = 0, decode_seconds = 0;
  Bytes encode_scratch = 0, decode_scratch = 0;  ///< beside contents and code
};

/// Of `bytes` of contents, numbers of `element` bytes, that take `encoded` then: tried, once in a process. nullopt
/// where the device has no memory for both now, or not these operators. Any thread.
std::optional<CodecTrial> codec_trial(memory::DeviceMemory& memory, memory::Codec codec, std::size_t element,
                                      Bytes bytes, Bytes encoded);

}  // namespace snug::record
