#include "snug/memory/links.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

namespace snug::memory {

Links::~Links() {
  try {
    for (const auto& [type, devices] : streams_) {
      const c10::impl::VirtualGuardImpl guard(type);
      for (const auto& [index, streams] : devices) {
        guard.synchronizeStream(streams.out);
        guard.synchronizeStream(streams.in);
      }
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device has failed, and does nothing any more
  }
}

Links::Streams& Links::streams(c10::Device device) {
  auto& of_type = streams_[device.type()];
  const auto known = of_type.find(device.index());
  if (known != of_type.end()) return known->second;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return of_type.emplace(device.index(), Streams{guard.getNewStream(device), guard.getNewStream(device)}).first->second;
}

StreamMark Links::run(c10::Stream stream, const std::function<void()>& copies) {
  const c10::StreamGuard in(stream);
  copies();
  return StreamMark(stream);
}

StreamMark Links::to_host(c10::Device device, const std::function<void()>& copies) {
  if (device.is_cpu()) return copies(), StreamMark();
  const std::lock_guard lock(mutex_);
  Streams& mine = streams(device);
  StreamMark(c10::impl::VirtualGuardImpl(device.type()).getStream(device)).let_wait(mine.out);
  for (const auto& [index, others] : streams_[device.type()]) {
    others.last_in.let_wait(mine.out);
    if (index != device.index()) others.last_out.let_wait(mine.out);
  }
  return mine.last_out = run(mine.out, copies);
}

StreamMark Links::to_device(c10::Device device, std::vector<StreamMark> after, const std::function<void()>& copies) {
  if (!device.is_cpu()) after.emplace_back(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return to_device_after(device, after, copies);
}

StreamMark Links::to_device_after(c10::Device device, const std::vector<StreamMark>& after,
                                  const std::function<void()>& copies) {
  if (device.is_cpu()) {
    for (const StreamMark& mark : after) mark.wait();
    return copies(), StreamMark();
  }
  for (const StreamMark& mark : after) mark.wait_for_thread();  // which may need the mutex
  const std::lock_guard lock(mutex_);
  Streams& mine = streams(device);
  for (const StreamMark& mark : after) mark.let_wait(mine.in);
  mine.last_in = run(mine.in, copies);
  return mine.last_in;
}

}  // namespace snug::memory
