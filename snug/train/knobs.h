#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/train/config_values.h"

namespace snug::train {

/// A change of the configuration that saves memory.
struct Knob {
  /// What it changes of a run beside memory and time.
  enum class Changes : std::uint8_t {
    Nothing,      ///< not a bit: it is free to use
    OrderOfSums,  ///< the same in exact numbers
    Numerics,
    Gradients,  ///< those alone, within bounds that the codec states: what nobody should be talked into
  };
  std::string_view name;  ///< what memory.allow takes
  std::string_view help;  ///< one line
  Changes changes;
  std::string_view key;  ///< of the configuration, that it sets
  /// The configuration with it, or with one step more of it; nullopt where it changes nothing there.
  std::optional<Config> (*turned)(Config config);
  /// Why it changes nothing there: "it needs ...".
  std::string (*why_not)(const Config& config);
  /// Gives a configuration what it changes in another.
  void (*copy)(const Config& from, Config& to);
  /// Of one that changes nothing: whether it may be used in a run that nobody has allowed it; null: in all.
  bool (*is_free)(const Config& config) = nullptr;
};

/// All there are, in the order in which they are tried. A new one is a line there.
const std::vector<Knob>& knobs();

/// The knobs that memory.allow names: with commas between. Throws UsageError for a name that is none.
std::vector<const Knob*> allowed_knobs(std::string_view allow);

}  // namespace snug::train
