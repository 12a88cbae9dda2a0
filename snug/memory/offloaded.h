#pragma once

#include <c10/core/Storage.h>

#include <memory>
#include <variant>

#include "snug/base/bytes.h"
#include "snug/memory/spill_file.h"

namespace snug::memory {

/// The contents of a storage, outside of its device's memory: those of an accelerator in the CPU's memory, those of
/// the CPU on disk.
class Offloaded {
 public:
  /// Copies the first `bytes`. `file` is where contents of the CPU's memory go; made when it is null. Throws Error when
  /// it cannot be written.
  Offloaded(const c10::Storage& storage, Bytes bytes, std::shared_ptr<SpillFile>& file);

  /// A new storage on the device, with the contents as they were.
  [[nodiscard]] c10::Storage load() const;
  /// Writes the contents over those of `storage`, which is of the same device and at least as large. On the CPU this
  /// takes no memory.
  void write_to(const c10::Storage& storage) const;
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

 private:
  struct InFile {
    std::shared_ptr<SpillFile> file;
    Bytes offset;
  };
  c10::Device device_;
  Bytes bytes_;
  std::variant<c10::Storage, InFile> place_;
};

}  // namespace snug::memory
