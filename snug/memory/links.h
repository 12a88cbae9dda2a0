#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "snug/memory/host_threads.h"
#include "snug/memory/stream_mark.h"

namespace snug::memory {

/// Copies between devices' memory and the host's, which go on beside what the devices compute: for each accelerator a
/// stream of its own each way, made when something goes there first. Copies of the CPU's memory are over when their
/// call returns. To the disk and back there are a few threads of the host each way, which wait for a device's copies
/// to and from the host where those are part of theirs. Any thread.
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
  /// The other way, once all of `after` are reached, and what the stream that is current now has.
  StreamMark to_device(c10::Device device, std::vector<StreamMark> after, const std::function<void()>& copies);
  /// The same for a thread of the host, whose current stream has nothing to do with it.
  StreamMark to_device_after(c10::Device device, const std::vector<StreamMark>& after,
                             const std::function<void()>& copies);

  /// `write`, or `read`, is done by the threads of that way, which begin one after the other.
  StreamMark to_disk(std::function<void()> write) { return StreamMark(to_disk_.run(std::move(write))); }
  StreamMark from_disk(std::function<void()> read) { return StreamMark(from_disk_.run(std::move(read))); }
  /// That a processor has worked for those of each way that are over.
  [[nodiscard]] double seconds_to_disk() const { return to_disk_.seconds(); }
  [[nodiscard]] double seconds_from_disk() const { return from_disk_.seconds(); }

 private:
  struct Streams {
    c10::Stream out, in;
    StreamMark last_in{}, last_out{};
  };
  Streams& streams(c10::Device device);
  static StreamMark run(c10::Stream stream, const std::function<void()>& copies);

  std::mutex mutex_;
  std::map<c10::DeviceType, std::map<c10::DeviceIndex, Streams>> streams_;  // under it
  // Some sum up contents while others wait for the disk. The last, as they use the streams.
  HostThreads to_disk_{4}, from_disk_{4};
};

}  // namespace snug::memory
