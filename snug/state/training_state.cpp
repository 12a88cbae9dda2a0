#include "snug/state/training_state.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "snug/base/damaged_file.h"
#include "snug/base/errors.h"
#include "snug/base/file_hash.h"
#include "snug/base/listing.h"
#include "snug/base/text_file.h"
#include "snug/state/safetensors.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kStatePrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

std::string contents(const fs::path& path) {
  try {
    return read_text(path);
  } catch (const std::system_error& error) {
    throw DamagedFile(path.string(), error.code().message());
  }
}

void check_file(const fs::path& path, const Manifest::File& expected) {
  try {
    const FileHash found = file_hash(path);
    if (found.bytes != expected.bytes) {
      throw DamagedFile(path.string(),
                        fmt::format("it has {} bytes, and its manifest says {}", found.bytes, expected.bytes));
    }
    if (found.hash != expected.hash) throw DamagedFile(path.string(), "its bytes are not those that were written");
  } catch (const std::system_error& error) {
    throw DamagedFile(path.string(), error.code().message());
  }
}

/// Faults of one file's tensors against those that are registered.
void compare(const std::string& file, const StoredTensors& stored, const TensorSources& own,
             std::vector<std::string>& faults) {
  for (const auto& [name, tensor] : own) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      faults.push_back(fmt::format("{} has no {}", file, name));
    } else if (found->second.shape != tensor.shape || found->second.dtype != tensor.dtype) {
      faults.push_back(fmt::format("{} has {} as {} {}, and here it is {} {}", file, name,
                                   c10::toString(found->second.dtype), fmt::join(found->second.shape, "x"),
                                   c10::toString(tensor.dtype), fmt::join(tensor.shape, "x")));
    }
  }
  for (const auto& [name, tensor] : stored) {
    if (!own.contains(name)) faults.push_back(fmt::format("{} has {}, which is not here", file, name));
  }
}

TensorSources sources_of(const NamedTensors& tensors) {
  TensorSources sources;
  for (const auto& [name, tensor] : tensors) sources.emplace(name, tensor);
  return sources;
}

json read_values(const fs::path& folder) {
  json all = json::parse(contents(folder / kValues), nullptr, /*allow_exceptions=*/false);
  if (!all.is_object()) throw DamagedFile((folder / kValues).string(), "it is no JSON object");
  return all;
}

}  // namespace

void TrainingState::add_tensors(const std::string& name, NamedTensors tensors, Default otherwise) {
  tensors_.insert_or_assign(name, std::move(tensors));
  tensor_defaults_.erase(name);
  if (otherwise) tensor_defaults_.emplace(name, std::move(otherwise));
}

void TrainingState::add_value(const std::string& name, std::function<json()> save,
                              std::function<void(const json&)> restore, Default otherwise) {
  values_.insert_or_assign(name, Value{std::move(save), std::move(restore)});
  value_defaults_.erase(name);
  if (otherwise) value_defaults_.emplace(name, std::move(otherwise));
}

void TrainingState::add_divided(const std::string& name, DividedTensors tensors) {
  divided_.insert_or_assign(name, std::move(tensors));
}

json TrainingState::values() const {
  json all = json::object();
  for (const auto& [name, value] : values_) all[name] = value.save();
  return all;
}

void TrainingState::restore(const fs::path& folder) {
  std::vector<std::string> faults;
  std::map<std::string, StoredTensors> files;
  for (const auto& [name, own] : tensors_) {
    const std::string file = name + std::string(kSuffix);
    if (!fs::exists(folder / file)) {
      if (!tensor_defaults_.contains(name)) faults.push_back(fmt::format("there is no {}", file));
      continue;
    }
    files.emplace(name, open_safetensors(folder / file).tensors);
    compare(file, files.at(name), sources_of(own), faults);
  }
  for (const auto& [name, own] : divided_) {
    const std::string file = name + std::string(kSuffix);
    if (!fs::exists(folder / file)) {
      faults.push_back(fmt::format("there is no {}", file));
      continue;
    }
    files.emplace(name, open_safetensors(folder / file).tensors);
    compare(file, files.at(name), own.all, faults);
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    const std::string name = file.substr(0, file.size() - std::min(file.size(), kSuffix.size()));
    if (file.ends_with(kSuffix) && !tensors_.contains(name) && !divided_.contains(name)) {
      faults.push_back(fmt::format("{} is of no use here", file));
    }
  }
  const json all = read_values(folder);
  for (const auto& [name, value] : values_) {
    if (!all.contains(name) && !value_defaults_.contains(name)) {
      faults.push_back(fmt::format("{} has no {}", kValues, name));
    }
  }
  if (!faults.empty()) {
    throw UsageError(fmt::format("resuming from {}: it is of another run, {} do not fit: {}", folder.string(),
                                 faults.size(), listed(faults, "; ")));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensors] : tensors_) {
    const auto stored = files.find(name);
    if (stored == files.end()) continue;
    for (const auto& [tensor_name, tensor] : tensors) at::Tensor(tensor).copy_(stored->second.at(tensor_name).read());
  }
  for (const auto& [name, tensors] : divided_) {
    for (const TensorPart& p : tensors.mine) copy_from_whole(files.at(name).at(p.name).read().view(-1), p);
  }
  for (const auto& [name, value] : values_) {
    if (all.contains(name)) value.restore(all[name]);
  }
  // What is missing may follow from what is there.
  for (const auto& [name, otherwise] : tensor_defaults_) {
    if (!files.contains(name)) otherwise();
  }
  for (const auto& [name, otherwise] : value_defaults_) {
    if (!all.contains(name)) otherwise();
  }
}

StateFolder open_state(const fs::path& path) {
  const fs::path manifest = path / kManifest;
  StateFolder folder{path, parse_manifest(contents(manifest), manifest.string())};
  for (const auto& [name, file] : folder.manifest.files) check_file(path / name, file);
  return folder;
}

std::optional<StateFolder> newest_state(
    const fs::path& folder, const std::function<void(const fs::path& state, const std::string& why)>& damaged) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    if (const auto step = step_of_name(entry->path().filename().string())) steps.push_back(*step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw Error(fmt::format("resuming: {} cannot be read: {}", folder.string(), error.message()));
  }
  std::ranges::sort(steps, std::greater());
  for (const std::int64_t step : steps) {
    try {
      return open_state(folder / state_name(step));
    } catch (const DamagedFile& fault) {
      damaged(folder / state_name(step), fault.what());
    }
  }
  return std::nullopt;
}

json values_in(const StateFolder& folder) { return read_values(folder.path); }

std::string state_name(std::int64_t step) { return fmt::format("{}{:010}", kStatePrefix, step); }

std::optional<std::int64_t> step_of_name(const std::string& name) {
  if (!name.starts_with(kStatePrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* const last = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + kStatePrefix.size(), last, step);
  if (error != std::errc{} || end != last || step < 0 || name != state_name(step)) return std::nullopt;
  return step;
}

}  // namespace snug::state
