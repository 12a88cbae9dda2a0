#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "snug/report/progress.h"

namespace snug::train {

class Experiment;

struct Prompts {
  std::vector<std::string> texts;
  std::int64_t tokens = 40;  ///< at most, of each continuation
};

/// How each prompt goes on, greedily, so that a difference between two calls is the training's. nullopt for one that
/// the limit of the memory has no room for, which `progress` is told, and for all where the process has a part of the
/// model alone. Throws UsageError as models::generate.
std::vector<std::optional<std::string>> continuations(const Experiment& experiment, const Prompts& prompts,
                                                      report::Progress& progress);

}  // namespace snug::train
