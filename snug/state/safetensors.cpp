#include "snug/state/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <stdexcept>
#include <system_error>

#include "snug/base/damaged_file.h"
#include "snug/base/durable_file.h"
#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/base/text_file.h"
#include "snug/memory/owned_contents.h"
#include "snug/state/mapped_weights.h"
#include "snug/state/safetensors_header.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

using NamedSource = NamedSources::value_type;

/// Runs of tensors that take at most so many bytes.
std::vector<NamedSources> shards_of(const NamedSources& tensors, Bytes limit) {
  std::vector<NamedSources> shards(1);
  Bytes taken = 0;
  for (const NamedSource& tensor : tensors) {
    const auto bytes = static_cast<Bytes>(tensor.second.nbytes());
    if (!shards.back().empty() && taken + bytes > limit) {
      shards.emplace_back();
      taken = 0;
    }
    shards.back().push_back(tensor);
    taken += bytes;
  }
  return shards;
}

/// "model-00001-of-00003.safetensors"
bool is_shard(const std::string& file) {
  constexpr std::string_view kForm = "model-#####-of-#####.safetensors";
  return std::ranges::equal(file, kForm,
                            [](char c, char form) { return form == '#' ? c >= '0' && c <= '9' : c == form; });
}

void remove_earlier(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error)
    throw Error(fmt::format("writing {}: an earlier file cannot be removed: {}", path.string(), error.message()));
}

at::Tensor read(const std::shared_ptr<const MappedFile>& file, const SafetensorsEntry& e) {
  const auto options = at::TensorOptions().dtype(e.dtype);
  if (e.begin == e.end) return at::empty(e.shape, options);
  auto* const data = const_cast<std::uint8_t*>(file->bytes().data() + e.begin);
  if (reinterpret_cast<std::uintptr_t>(data) % c10::elementSize(e.dtype) == 0) {
    return at::from_blob(
        data, e.shape, [file](void*) {}, options);
  }
  at::Tensor copy = at::empty(e.shape, options);
  std::memcpy(copy.mutable_data_ptr(), data, e.end - e.begin);
  return copy;
}

std::string index_text(const fs::path& path) try { return read_text(path); } catch (const std::system_error& error) {
  throw UsageError(fmt::format("opening weights: {} cannot be read: {}", path.string(), error.code().message()));
}

StoredTensors open_index(const fs::path& path) {
  const JsonFile index(index_text(path), {.name = path.string(),
                                          .cure = "use an index of weights as transformers writes it",
                                          .raise = DamagedFile::raise});
  std::map<std::string, StoredTensors> files;
  StoredTensors all;
  for (const auto& [key, file] : index.root().at("weight_map").members()) {
    const std::string name(key);
    const auto file_name = file.as<std::string>();
    // A name, and no path: what was downloaded must not point to anywhere else on the machine.
    if (file_name.empty() || fs::path(file_name).filename() != file_name) file.refuse("a file's name");
    auto known = files.find(file_name);
    if (known == files.end()) {
      known = files.emplace(file_name, open_safetensors(path.parent_path() / file_name).tensors).first;
    }
    auto tensor = known->second.extract(name);
    if (tensor.empty())
      file.fail(fmt::format("{} is said to be in {}, and is not", quoted_text(name), quoted_text(file_name)));
    all.insert(std::move(tensor));
  }
  return all;
}

}  // namespace

Safetensors open_safetensors(const fs::path& path) {
  const auto file = map_weights(path);
  SafetensorsHeader header = parse_safetensors_header(file->bytes(), path.string());
  Safetensors all{{}, std::move(header.metadata)};
  for (SafetensorsEntry& e : header.tensors) {
    const std::string name = e.name;
    all.tensors.emplace(name, StoredTensor{e.dtype, e.shape, [file, e = std::move(e)] { return read(file, e); }});
  }
  return all;
}

StoredTensors open_sharded_safetensors(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    const fs::path whole = path / kWhole, index = path / kIndex;
    const bool in_parts = !fs::exists(whole, ignored) && fs::exists(index, ignored);
    return in_parts ? open_index(index) : open_safetensors(whole).tensors;
  }
  return path.extension() == ".json" ? open_index(path) : open_safetensors(path).tensors;
}

void write_safetensors(const fs::path& path, const NamedSources& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::map<std::string_view, const TensorSource*> sources;
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, source] : tensors) {
    if (!sources.emplace(name, &source).second)
      throw UsageError(fmt::format("writing {}: two tensors have the name {}", path.string(), name));
    entries.push_back({name, source.dtype, source.shape, 0, 0});
  }
  std::ranges::sort(entries, safetensors_order);
  const std::string header = format_safetensors_header(entries, metadata);
  try {
    DurableFile file(path);
    file.write(std::as_bytes(std::span(header)));
    for (const SafetensorsEntry& e : entries) {
      const TensorSource& source = *sources.at(e.name);
      std::size_t left = source.nbytes();
      source.bytes([&](std::span<const std::byte> bytes) {
        file.write(bytes);
        left -= bytes.size();
      });
      if (left != 0) throw std::logic_error(fmt::format("writing {}: {} has other bytes", path.string(), e.name));
    }
    file.finish();
  } catch (const std::system_error& error) {
    throw Error(fmt::format("writing {}: {}; the file is as it was, or whole", path.string(), error.code().message()));
  }
}

void write_sharded_safetensors(const fs::path& folder, const NamedSources& tensors, Bytes limit,
                               const std::map<std::string, std::string>& metadata) {
  const auto shards = shards_of(tensors, limit);
  std::set<std::string> written;
  std::error_code error;
  if (shards.size() == 1) {
    write_safetensors(folder / kWhole, tensors, metadata);
    written.insert(kWhole);
  } else {
    // Shards may take the names of earlier ones: it must not name some of either.
    if (fs::exists(folder / kIndex, error)) remove_earlier(folder / kIndex);
    nlohmann::json weight_map = nlohmann::json::object();
    std::size_t total = 0;
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
      for (const auto& [name, tensor] : shards[i]) {
        if (weight_map.contains(name)) {
          throw UsageError(fmt::format("writing {}: two tensors have the name {}", folder.string(), name));
        }
        weight_map[name] = file;
        total += tensor.nbytes();
      }
      write_safetensors(folder / file, shards[i], metadata);
      written.insert(file);
    }
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    try {
      write_text(folder / kIndex, index.dump(2) + "\n");
    } catch (const std::system_error& failed) {
      throw Error(fmt::format("writing {}: {}", (folder / kIndex).string(), failed.code().message()));
    }
    written.insert(kIndex);
  }
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string file = entry.path().filename().string();
    if ((file == kWhole || file == kIndex || is_shard(file)) && !written.contains(file)) left.push_back(entry.path());
  }
  for (const fs::path& path : left) remove_earlier(path);
}

}  // namespace snug::state
