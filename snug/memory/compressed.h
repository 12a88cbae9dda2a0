#pragma once

#include <c10/core/Storage.h>

#include <cstddef>

#include "snug/base/bytes.h"
#include "snug/memory/codec.h"

namespace snug::memory {

/// The contents of a storage of the CPU's memory in fewer bytes of it.
class Compressed {
 public:
  struct As {
    Codec codec = Codec::Zeros;
    std::size_t element = 4;  ///< bytes of one of its numbers
    Bytes bytes = 0;          ///< that are taken for them, whatever they need
  };
  /// The first `bytes` of the storage. Throws Error when they do not fit, OutOfBudget when there is no memory for that.
  Compressed(const c10::Storage& storage, Bytes bytes, As as);

  /// A new storage with the contents as they were.
  [[nodiscard]] c10::Storage expand() const;
  /// Of memory that they take.
  [[nodiscard]] Bytes bytes() const noexcept { return as_.bytes; }

 private:
  Bytes bytes_;
  As as_;
  c10::Storage encoded_;
};

}  // namespace snug::memory
