#include "snug/train/run_device.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/train/config.h"

namespace snug::train {

c10::Device device_of(const Config& config) {
  const c10::Device device = memory::with_index(memory::device_named(config.train.device));
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
