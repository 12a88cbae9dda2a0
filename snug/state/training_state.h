#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/state/divided_tensors.h"
#include "snug/state/manifest.h"

namespace snug::state {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What a training run consists of, registered by name: all that it takes to go on as if it had not been stopped.
/// Weights, optimizer, random states, position in the data, a loss scaler, whatever has state. One thread at a time.
///
/// A part that states of before it was registered do not have has a default: `otherwise`, which is called in place of
/// restoring, when all that is there has been restored. Without one a state must have the part.
class TrainingState {
 public:
  using Default = std::function<void()>;

  /// Tensors that are saved under that name, in a file of their own, and written in place when they are restored.
  /// Types, shapes and names must be the same then.
  void add_tensors(const std::string& name, NamedTensors tensors, Default otherwise = {});

  /// Tensors of which this process has parts, and others the rest: they are saved as those of one process would be, and
  /// restored with parts of any sizes, or whole. The process that saves them waits for what others have.
  void add_divided(const std::string& name, DividedTensors tensors);

  /// A value: `save` gives it as JSON, and `restore` gets what it gave.
  void add_value(const std::string& name, std::function<nlohmann::json()> save,
                 std::function<void(const nlohmann::json&)> restore, Default otherwise = {});

  [[nodiscard]] const std::map<std::string, NamedTensors>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, DividedTensors>& divided() const { return divided_; }
  /// All values as they are now.
  [[nodiscard]] nlohmann::json values() const;

  /// Reads a folder that is whole (see open_state) back into all that is registered. Throws UsageError that lists what
  /// the folder lacks that has no default, has beyond it, or has of another shape or type; nothing is changed then.
  void restore(const std::filesystem::path& folder);

 private:
  struct Value {
    std::function<nlohmann::json()> save;
    std::function<void(const nlohmann::json&)> restore;
  };
  std::map<std::string, NamedTensors> tensors_;
  std::map<std::string, DividedTensors> divided_;
  std::map<std::string, Value> values_;
  std::map<std::string, Default> tensor_defaults_, value_defaults_;  // of parts that have one
};

/// A folder of training state, checked: all its files are there, whole and unchanged.
struct StateFolder {
  std::filesystem::path path;
  Manifest manifest;
};

/// Checks one folder. Throws DamagedFile naming the file that is missing, too short or changed.
StateFolder open_state(const std::filesystem::path& path);

/// The newest state under a folder that is whole; nullopt when there is none. `damaged` is told of each newer one that
/// is not, and why. What was not finished is passed over. Throws Error when the folder is there and cannot be read.
std::optional<StateFolder> newest_state(
    const std::filesystem::path& folder,
    const std::function<void(const std::filesystem::path& state, const std::string& why)>& damaged);

/// The values that it holds, by name. Throws DamagedFile.
nlohmann::json values_in(const StateFolder& folder);

/// The folder's name for a state after so many steps.
std::string state_name(std::int64_t step);
/// The steps of such a name; nullopt for other names.
std::optional<std::int64_t> step_of_name(const std::string& name);

inline constexpr const char* kManifest = "manifest.json";
inline constexpr const char* kValues = "values.json";
inline constexpr const char* kUnfinished = ".unfinished-";

}  // namespace snug::state
