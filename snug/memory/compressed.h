#pragma once

#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <optional>

#include "snug/base/bytes.h"
#include "snug/memory/codec.h"

namespace snug::memory {

/// The contents of a storage in fewer bytes of its device's memory. On an accelerator codecs are operators in the
/// current stream (tensor_codec.h), which the caller sees to that nobody takes for the program's.
class Compressed {
 public:
  struct As {
    Codec codec = Codec::Zeros;
    std::size_t element = 4;  ///< bytes of one of its numbers
    Bytes bytes = 0;          ///< that are taken for them, whatever they need
  };
  /// The first `bytes` of the storage. Throws Error when they do not fit, OutOfBudget when there is no memory for that.
  /// The host waits until they are written.
  Compressed(const c10::Storage& storage, Bytes bytes, As as);

  /// A new storage with the contents as they were, in the current stream.
  [[nodiscard]] c10::Storage expand() const;
  /// Of memory that they take.
  [[nodiscard]] Bytes bytes() const noexcept { return as_.bytes; }

 private:
  Bytes bytes_;
  As as_;
  c10::Storage encoded_;
  std::optional<c10::Stream> made_in_;  // on an accelerator
};

}  // namespace snug::memory
