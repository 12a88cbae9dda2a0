#pragma once

#include <optional>
#include <string>

#include "snug/base/bytes.h"
#include "snug/cli/command.h"
#include "snug/described/device_description.h"

namespace snug::cli {

/// What `snug plan --devices` is told beside a configuration.
struct MeshOptions {
  std::optional<int> devices;
  std::optional<int> nodes;
  std::optional<Bytes> device_memory, host_memory;
  std::optional<std::string> link;                   ///< between machines and within one
  std::optional<described::DeviceDescription> on{};  ///< not here

  [[nodiscard]] bool any() const { return devices || nodes || device_memory || host_memory || link; }
};
void add_mesh_options(CLI::App& command, MeshOptions& options);

/// `snug plan --devices`: looks for a layout. Returns the exit code: 1 where none fits.
int plan_mesh(const ConfigOptions& options, const MeshOptions& mesh);

}  // namespace snug::cli
