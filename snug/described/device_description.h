#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::described {

/// What an accelerator can do, as its maker says it: so that steps can be planned for one that is not here.
struct DeviceDescription {
  /// Several of them in its maker's servers, and the network between servers.
  struct Server {
    int devices = 1;
    double link_bytes_per_second = 0;     ///< of a device to the others of its server, each way
    double network_bytes_per_second = 0;  ///< of the network adapters that each device has for itself, each way
  };

  std::string name;
  double flops = 0;                  ///< a second, dense products of 16-bit numbers
  double flops_of_fp32 = 0;          ///< the same of 32-bit ones, without TF32
  double bytes_per_second = 0;       ///< of its memory
  Bytes memory = 0;                  ///< that its driver says it has
  double host_bytes_per_second = 0;  ///< between it and the host, each way
  std::optional<Server> server{};    ///< none: they are sold as cards, for any machine

  /// What a process has of it: a context of its driver takes half a GiB.
  [[nodiscard]] Bytes usable() const;
};

/// The table of known devices. describe() also takes short names: h100 for h100-sxm, a100 for a100-80gb.
const std::vector<DeviceDescription>& known_devices();

/// Of a known name, in any case, or of what somebody's own has: FLOPS/BYTES-A-SECOND/MEMORY, as in
/// "312TFLOPS/2TBps/80GiB" (rates as read_rate() has them); 32-bit products are then as fast, and a PCIe 4.0 link with
/// 16 lanes leads to the host. Throws UsageError for another text.
DeviceDescription describe(std::string_view text);

}  // namespace snug::described
