#include "snug/parallel/rehearsed_time.h"

#include <chrono>
#include <thread>

#include "snug/base/clock.h"
#include "snug/described/described_device.h"

namespace snug::parallel {
namespace {

class HostTime final : public RehearsedTime {
 public:
  double now() override { return monotonic_seconds(); }
  void wait_until(double seconds) override {
    constexpr double kLate = 200e-6;  // by which the system wakes up
    const std::chrono::duration<double> asleep(seconds - kLate - now());
    if (asleep.count() > 0) std::this_thread::sleep_for(asleep);
    while (now() < seconds) std::this_thread::yield();
  }
};

class DescribedTime final : public RehearsedTime {
 public:
  double now() override { return described::stream_clock().at(described::current_stream()); }
  void wait_until(double seconds) override { described::stream_clock().let_wait(described::current_stream(), seconds); }
};

}  // namespace

std::shared_ptr<RehearsedTime> rehearsed_time(c10::Device device) {
  if (device.type() == described::kDescribed) return std::make_shared<DescribedTime>();
  return std::make_shared<HostTime>();
}

}  // namespace snug::parallel
