#include "snug/train/run_device.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include <cstdint>
#include <optional>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/parallel/launch.h"
#include "snug/train/config.h"

namespace snug::train {

namespace {

std::optional<parallel::Launched> launched_beside_others() {
  try {
    const auto launched = parallel::launched();
    return launched && launched->local_size > 1 ? launched : std::nullopt;
  } catch (const UsageError&) {  // which whoever trains together says
    return std::nullopt;
  }
}

c10::Device one_of_its_own(c10::Device named) {
  if (named.is_cpu() || !c10::impl::hasDeviceGuardImpl(named.type())) return named;
  const int count = static_cast<std::uint8_t>(c10::impl::getDeviceGuardImpl(named.type())->deviceCount());
  const auto launched = launched_beside_others();
  if (!launched || count < 2) return named;
  if (named.has_index()) {
    throw UsageError(fmt::format(
        "train.device = \"{}\", and {} processes on this machine: all of them would be on that one of {}; leave the "
        "index out, and each has one of its own",
        named.str(), launched->local_size, count));
  }
  return {named.type(), static_cast<c10::DeviceIndex>(launched->local_rank % count)};
}

}  // namespace

c10::Device device_of(const Config& config) {
  const c10::Device device = memory::with_index(one_of_its_own(memory::device_named(config.train.device)));
  if (config.model.weights == BaseWeights::Packed && !device.is_cpu()) {
    throw UsageError(fmt::format(
        "configuration: model.weights = \"packed\", whose blocks are unpacked by the CPU, and train.device = "
        "\"{}\"; change one of them",
        config.train.device));
  }
  (void)memory::device_memory(device);
  return device;
}

}  // namespace snug::train
