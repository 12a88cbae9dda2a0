#include "snug/record/stream_order.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace snug::record {

StreamOrder::OfDevice& StreamOrder::of(c10::Device device) {
  const auto known = std::ranges::find(devices_, device, &OfDevice::device);
  if (known != devices_.end()) return *known;
  return devices_.emplace_back(OfDevice{device, {}});
}

StreamOrder::Known& StreamOrder::current(OfDevice& on) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(on.device.type()).getStream(on.device);
  const auto known = std::ranges::find(on.streams, stream, &Known::stream);
  if (known != on.streams.end()) return *known;
  return on.streams.emplace_back(Known{stream});
}

void StreamOrder::made_on(c10::Device device) {
  if (!device.is_cpu()) current(of(device));
}

void StreamOrder::used_on_its_device(c10::StorageImpl* storage) {
  const c10::Device device = storage->device();
  OfDevice& on = of(device);
  const c10::Stream stream = current(on).stream;
  if (on.streams.size() > 1 && storage->data() != nullptr)
    c10::impl::VirtualGuardImpl(device.type()).recordDataPtrOnStream(storage->data_ptr(), stream);
}

void StreamOrder::forward_over() {
  ++time_;
  for (OfDevice& on : devices_) {
    for (Known& known : on.streams) known.left_at = time_;
  }
}

void StreamOrder::let_wait(const Known& waits, const Known& other) {
  c10::Event reached(other.stream.device_type());
  reached.record(other.stream);
  reached.block(waits.stream);
}

StreamOrder::Known& StreamOrder::caught_up(OfDevice& on) {
  Known& now = current(on);
  for (const Known& other : on.streams) {
    if (&other != &now && other.left_at > now.waited_at) let_wait(now, other);
  }
  now.waited_at = time_;
  return now;
}

void StreamOrder::catch_up(c10::Device device) {
  if (!device.is_cpu()) caught_up(of(device));
}

void StreamOrder::enter(c10::Device device) {
  if (!device.is_cpu()) caught_up(of(device)).entered = true;
}

std::vector<c10::Device> StreamOrder::devices() const {
  std::vector<c10::Device> all;
  for (const OfDevice& on : devices_) all.push_back(on.device);
  return all;
}

void StreamOrder::wait_for_all(c10::Device device) {
  if (device.is_cpu()) return;
  OfDevice& on = of(device);
  const Known& now = current(on);
  for (const Known& other : on.streams) {
    if (&other != &now) let_wait(now, other);
  }
}

void StreamOrder::let_wait(c10::Device device, const memory::StreamMark& mark) {
  if (device.is_cpu()) return mark.wait();
  mark.let_wait(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

bool StreamOrder::let_all_wait(c10::Device device, const memory::StreamMark& mark) noexcept {
  try {
    if (device.is_cpu()) {
      mark.wait();
      return true;
    }
    OfDevice& on = of(device);
    current(on);
    for (const Known& known : on.streams) mark.let_wait(known.stream);
    return true;
  } catch (const c10::Error&) {
    return !device.is_cpu();  // a device that has failed does nothing any more
  } catch (const std::exception&) {
    return false;
  }
}

void StreamOrder::finish(c10::Device device) {
  if (device.is_cpu()) return;
  c10::Event reached(device.type());
  reached.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  reached.synchronize();
}

void StreamOrder::leave() {
  ++time_;
  for (OfDevice& on : devices_) {
    for (Known& known : on.streams) {
      if (std::exchange(known.entered, false)) known.left_at = time_;
    }
  }
}

}  // namespace snug::record
