#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "snug/train/config.h"
#include "snug/train/mesh/devices.h"

namespace snug::train {

/// How many processes have other rows.
[[nodiscard]] std::int64_t replicas_of(const Config& config, const Devices& devices);

/// Every division of the processes into parts of layers, of sequences, stages and replicas, each without shards, with
/// fewest micro-batches and 1f1b, but with what is set by name of [parallel], where that does something, and
/// train.accumulate. Layers are in parts within a machine alone, unless that is set.
std::vector<Config> first_layouts(const Config& config, const Devices& devices);

/// The next one of a layout in some way, if there is one. `blocks`: of the model.
using Further = std::function<std::optional<Config>(const Config& config, std::int64_t blocks)>;

/// Ways to one that may be faster, or fit: more in shards, more micro-batches, more stages, shards within a machine, a
/// ring, the optimizer's state on the host; of what is not set.
std::vector<Further> ways_further(const Config& config, const Devices& devices);

/// "tensor 2, data 4, gradients in shards".
std::string layout_in_words(const Config& config, const Devices& devices);

/// What has to be set of the one to be the other: "parallel.tensor=2", ...
std::vector<std::string> settings_between(const Config& from, const Config& to);

}  // namespace snug::train
