#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/stream_mark.h"

namespace snug::replay {

/// The pages of a device's memory that a window is, and what is still copied from and to parts of them. Not
/// synchronized.
class WindowSlab {
 public:
  /// Places begin where pages do, as they do in files.
  static Bytes whole_pages(Bytes bytes);
  /// What so many bytes take of the device's memory, before its allocator rounds that.
  static Bytes memory_for(Bytes bytes);
  /// Memory of the device for weights.
  static c10::Storage new_memory(Bytes bytes, c10::Device device);

  /// Takes its memory by itself: `memory` is of memory_for(), or none.
  void open(c10::Storage memory) { memory_ = std::move(memory); }
  /// Bytes of it.
  [[nodiscard]] at::Tensor part(Bytes offset, Bytes bytes) const;

  /// A copy of a part goes on until the mark is reached.
  void goes_on(Bytes offset, Bytes bytes, memory::StreamMark mark);
  /// All that go on in a part. Whether they fail is told to who reads what they copy.
  [[nodiscard]] std::vector<memory::StreamMark> going_on(Bytes offset, Bytes bytes);
  /// Until none does. Throws what the first of them has thrown that has failed.
  void wait();

 private:
  struct Copy {
    Bytes begin, end;
    memory::StreamMark mark;
  };
  c10::Storage memory_;
  std::vector<Copy> copies_;
};

}  // namespace snug::replay
