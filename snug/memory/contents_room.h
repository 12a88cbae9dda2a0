#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/stream_mark.h"

namespace snug::memory {

/// Where contents of a device's memory are while they are not there, written and read as often as one likes: bytes, in
/// tensors as byte_tensor() makes them, of that device and as long as the room. One thread at a time.
class ContentsRoom {
 public:
  virtual ~ContentsRoom() = default;

  /// The copies may go on beside what the device and the host do: until the mark that is returned, contents that are
  /// written have to stay as they are. Where they cannot be written it tells so, as every read does, and the room has
  /// no contents.
  virtual StreamMark write(const at::Tensor& contents) = 0;
  /// From the mark on `contents` have what was written last. Before it they have to stay; it tells so when the contents
  /// cannot be read. The copy begins once all of `after` are reached.
  [[nodiscard]] virtual StreamMark read(const at::Tensor& contents, std::vector<StreamMark> after) const = 0;
  /// It is over when this returns. Throws Error when they cannot be read. On the CPU this takes no memory.
  virtual void read_now(const at::Tensor& contents) const = 0;

  /// Of what was written last.
  [[nodiscard]] virtual const StreamMark& written() const noexcept = 0;
  [[nodiscard]] virtual Bytes bytes() const noexcept = 0;
  /// What of it takes room on a disk.
  [[nodiscard]] virtual Bytes on_disk() const noexcept = 0;
  /// Whether gradients of what is there may go where it is, too.
  [[nodiscard]] virtual bool takes_gradients() const noexcept = 0;

 protected:
  ContentsRoom() = default;
  ContentsRoom(const ContentsRoom&) = default;
  ContentsRoom(ContentsRoom&&) = default;
  ContentsRoom& operator=(const ContentsRoom&) = default;
  ContentsRoom& operator=(ContentsRoom&&) = default;
};

}  // namespace snug::memory
