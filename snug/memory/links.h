#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "snug/memory/host_thread.h"
#include "snug/memory/stream_mark.h"

namespace snug::memory {

/// Copies between devices' memory and the host's, which go on beside what the devices compute: for each accelerator a
/// stream of its own each way, made when something goes there first. Copies of the CPU's memory are over when their
/// call returns. To the disk and back there is a thread of the host each way. Any thread.
class Links {
 public:
  Links() = default;
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  /// Waits until all copies are over.
  ~Links();

  /// `copies` puts copies from the device to the host into its current stream. They begin after what the stream that is
  /// current now has, and after what is still fetched, or on its way from other devices: memory of the host's that was
  /// given back may be written.
  StreamMark to_host(c10::Device device, const std::function<void()>& copies);
  /// The other way, once `after` is reached.
  StreamMark to_device(c10::Device device, const StreamMark& after, const std::function<void()>& copies);

  /// `write`, or `read`, is done by the thread of that way, once it has done all before.
  StreamMark to_disk(std::function<void()> write) { return StreamMark(to_disk_.run(std::move(write))); }
  StreamMark from_disk(std::function<void()> read) { return StreamMark(from_disk_.run(std::move(read))); }

 private:
  struct Streams {
    c10::Stream out, in;
    StreamMark last_in{}, last_out{};
  };
  Streams& streams(c10::Device device);
  static StreamMark run(c10::Stream stream, const std::function<void()>& copies);

  HostThread to_disk_, from_disk_;
  std::mutex mutex_;  // of what follows
  std::map<c10::DeviceType, std::map<c10::DeviceIndex, Streams>> streams_;
};

}  // namespace snug::memory
