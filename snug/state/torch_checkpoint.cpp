#include "snug/state/torch_checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/damaged_file.h"
#include "snug/base/errors.h"
#include "snug/base/mapped_file.h"
#include "snug/base/pickle.h"
#include "snug/state/mapped_weights.h"
#include "snug/state/torch_file.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;
using Sizes = std::vector<std::int64_t>;

constexpr const char* kMetadata = ".metadata";
constexpr Bytes kLargestMetadata = 64_MiB;  // each byte of it may become an object of a hundred

/// Where a part of a tensor lies.
struct Place {
  std::string file;
  std::int64_t offset = 0, length = 0;
};
struct Part {
  Sizes offsets, sizes;
  Place place;
};
struct Whole {
  at::ScalarType type;
  Sizes sizes;
  std::vector<Part> parts;
};

std::int64_t elements_of(const Sizes& sizes) {
  std::int64_t all = 1;
  for (const std::int64_t size : sizes) {
    if (__builtin_mul_overflow(all, size, &all)) return -1;
  }
  return all;
}

/// The fields of what torch.distributed.checkpoint has pickled, each of which must be there.
class Fields {
 public:
  explicit Fields(std::string file) : file_(std::move(file)) {}

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> what, Args&&... args) const {
    throw DamagedFile(file_, fmt::format(what, std::forward<Args>(args)...));
  }
  template <class Value>
  const Value& as(const Pickled& value, std::string_view what) const {
    if (const auto* const found = std::get_if<Value>(&value.value)) return *found;
    fail("{} is not what the format says", what);
  }
  /// Of an object of a class with that name, in whatever module.
  [[nodiscard]] const Pickled* find(const Pickled& object, std::string_view of_class, std::string_view field) const {
    const auto& is = as<Pickled::Object>(object, of_class);
    if (!is.made_by.ends_with(of_class)) fail("{} is a {}", of_class, is.made_by);
    if (is.state == nullptr) return nullptr;
    // Slots beside the dict, or the dict alone.
    const Pickled* state = is.state;
    if (const auto* const both = std::get_if<Pickled::List>(&state->value); both != nullptr && both->size() == 2)
      state = both->front();
    for (const auto& [key, value] : as<Pickled::Dict>(*state, of_class)) {
      const auto* const text = std::get_if<Pickled::Text>(&key->value);
      if (text != nullptr && text->text == field) return value;
    }
    return nullptr;
  }
  [[nodiscard]] const Pickled& get(const Pickled& object, std::string_view of_class, std::string_view field) const {
    const Pickled* const found = find(object, of_class, field);
    if (found == nullptr) fail("{} has no {}", of_class, field);
    return *found;
  }
  [[nodiscard]] std::int64_t number(const Pickled& value, std::string_view what) const {
    const auto number = as<std::int64_t>(value, what);
    if (number < 0) fail("{} is {}, which is below 0", what, number);
    return number;
  }
  /// A torch.Size.
  [[nodiscard]] Sizes sizes(const Pickled& value, std::string_view what) const {
    const auto& made = as<Pickled::Object>(value, what);
    if (made.made_by != "torch.Size" || made.arguments.size() != 1) fail("{} is no torch.Size", what);
    Sizes all;
    for (const Pickled* const one : as<Pickled::List>(*made.arguments.front(), what)) all.push_back(number(*one, what));
    return all;
  }

 private:
  std::string file_;
};

using Places = std::map<std::pair<std::string, Sizes>, Place>;

Places places_in(const Fields& fields, const Pickled& metadata) {
  Places places;
  for (const auto& [key, value] :
       fields.as<Pickled::Dict>(fields.get(metadata, "Metadata", "storage_data"), "storage_data")) {
    const std::string name = fields.as<Pickled::Text>(fields.get(*key, "MetadataIndex", "fqn"), "fqn").text;
    const Pickled* const offset = fields.find(*key, "MetadataIndex", "offset");
    if (offset == nullptr || std::holds_alternative<Pickled::None>(offset->value)) continue;  // of no tensor
    if (fields.find(*value, "_StorageInfo", "transform_descriptors") != nullptr) {
      throw UsageError(
          fmt::format("opening a checkpoint: {} has been transformed, as compressed, when it was saved, which "
                      "is not read; save it without extensions",
                      name));
    }
    Place place{
        .file = fields.as<Pickled::Text>(fields.get(*value, "_StorageInfo", "relative_path"), "relative_path").text,
        .offset = fields.number(fields.get(*value, "_StorageInfo", "offset"), "offset"),
        .length = fields.number(fields.get(*value, "_StorageInfo", "length"), "length")};
    const fs::path file(place.file);
    if (file.is_absolute() || std::ranges::count(file, fs::path("..")) > 0)
      fields.fail("{} lies in {}, outside of the folder", name, place.file);
    places[{name, fields.sizes(*offset, "offset")}] = std::move(place);
  }
  return places;
}

bool overlap(const Part& a, const Part& b) {
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) return false;
  }
  return true;
}

/// Some of the rows each, one behind the other, as nearly all are.
bool are_rows_in_order(const Whole& whole) {
  std::int64_t next = 0;
  for (const Part& part : whole.parts) {
    if (part.sizes.empty() || part.offsets.front() != next) return false;
    if (!std::equal(part.sizes.begin() + 1, part.sizes.end(), whole.sizes.begin() + 1)) return false;
    next += part.sizes.front();
  }
  return next == whole.sizes.front();
}

/// Compares those alone that reach into each other along the dimension that they are cut in most.
void check_apart(const Fields& fields, const std::string& name, const Whole& whole) {
  std::vector<const Part*> parts;
  for (const Part& part : whole.parts) {
    if (elements_of(part.sizes) > 0) parts.push_back(&part);
  }
  std::size_t along = 0, most = 0;
  for (std::size_t d = 0; d < whole.sizes.size(); ++d) {
    std::set<std::int64_t> offsets;
    for (const Part* const part : parts) offsets.insert(part->offsets[d]);
    if (offsets.size() <= most) continue;
    most = offsets.size();
    along = d;
  }
  if (!whole.sizes.empty()) std::ranges::sort(parts, {}, [&](const Part* part) { return part->offsets[along]; });
  std::vector<const Part*> open;
  for (const Part* const part : parts) {
    std::erase_if(open, [&](const Part* before) {
      return !whole.sizes.empty() && before->offsets[along] + before->sizes[along] <= part->offsets[along];
    });
    if (std::ranges::any_of(open, [&](const Part* before) { return overlap(*before, *part); }))
      fields.fail("parts of {} overlap", name);
    open.push_back(part);
  }
}

/// Each element is there, once.
void check_parts(const Fields& fields, const std::string& name, const Whole& whole) {
  std::int64_t there = 0;
  for (const Part& part : whole.parts) {
    if (part.offsets.size() != whole.sizes.size() || part.sizes.size() != whole.sizes.size())
      fields.fail("a part of {} has other dimensions than it", name);
    for (std::size_t d = 0; d < whole.sizes.size(); ++d) {
      if (part.offsets[d] > whole.sizes[d] - part.sizes[d]) fields.fail("a part of {} reaches beyond it", name);
    }
  }
  if (!whole.parts.empty() && are_rows_in_order(whole)) return;
  check_apart(fields, name, whole);
  for (const Part& part : whole.parts) there += elements_of(part.sizes);
  if (there != elements_of(whole.sizes))
    fields.fail("{} of the {} elements of {} are there", there, elements_of(whole.sizes), name);
}

std::map<std::string, Whole> tensors_in(const Fields& fields, const Pickled& metadata) {
  const Places places = places_in(fields, metadata);
  std::map<std::string, Whole> all;
  for (const auto& [key, value] :
       fields.as<Pickled::Dict>(fields.get(metadata, "Metadata", "state_dict_metadata"), "state_dict_metadata")) {
    const std::string name = fields.as<Pickled::Text>(*key, "a name").text;
    if (!fields.as<Pickled::Object>(*value, name).made_by.ends_with("TensorStorageMetadata")) continue;
    constexpr const char* kTensor = "TensorStorageMetadata";
    const auto& properties = fields.as<Pickled::Object>(fields.get(*value, kTensor, "properties"), "properties");
    const auto& state =
        fields.as<Pickled::List>(*(properties.state != nullptr ? properties.state : value), "properties");
    if (state.empty()) fields.fail("{} has no type", name);
    const std::string type = fields.as<Pickled::Global>(*state.front(), "a type").name;
    const auto known = scalar_type_named(type);
    if (!known) throw UsageError(fmt::format("opening a checkpoint: {} is of {}, which is not read", name, type));
    Whole whole{.type = *known, .sizes = fields.sizes(fields.get(*value, kTensor, "size"), "size"), .parts = {}};
    if (elements_of(whole.sizes) < 0) fields.fail("{} has more elements than there can be", name);
    for (const Pickled* const chunk : fields.as<Pickled::List>(fields.get(*value, kTensor, "chunks"), "chunks")) {
      Part part{.offsets = fields.sizes(fields.get(*chunk, "ChunkStorageMetadata", "offsets"), "offsets"),
                .sizes = fields.sizes(fields.get(*chunk, "ChunkStorageMetadata", "sizes"), "sizes"),
                .place = {}};
      const auto found = places.find({name, part.offsets});
      if (found == places.end()) fields.fail("of {} the part at {} lies nowhere", name, fmt::join(part.offsets, "x"));
      part.place = found->second;
      whole.parts.push_back(std::move(part));
    }
    check_parts(fields, name, whole);
    all.emplace(name, std::move(whole));
  }
  return all;
}

/// By flattened name, the keys that lead there, where they have been saved.
std::map<std::string, std::vector<std::string>> keys_in(const Fields& fields, const Pickled& metadata) {
  std::map<std::string, std::vector<std::string>> all;
  const Pickled* const data = fields.find(metadata, "Metadata", "planner_data");
  const auto* const dict = data != nullptr ? std::get_if<Pickled::Dict>(&data->value) : nullptr;
  if (dict == nullptr) return all;
  for (const auto& [name, path] : *dict) {
    const auto* const text = std::get_if<Pickled::Text>(&name->value);
    const auto* const keys = std::get_if<Pickled::List>(&path->value);
    if (text == nullptr || keys == nullptr) continue;
    for (const Pickled* const key : *keys) {
      const auto* const word = std::get_if<Pickled::Text>(&key->value);
      all[text->text].push_back(word != nullptr ? word->text : std::string());
    }
  }
  return all;
}

/// The files of a checkpoint, each mapped once.
class Files {
 public:
  explicit Files(fs::path folder) : folder_(std::move(folder)) {}
  [[nodiscard]] std::span<const std::uint8_t> bytes_of(const Place& place) {
    auto& file = open_[place.file];
    if (!file) file = map_weights(folder_ / place.file);
    const auto all = file->bytes();
    const auto offset = static_cast<std::uint64_t>(place.offset), length = static_cast<std::uint64_t>(place.length);
    if (offset > all.size() || length > all.size() - offset) {
      DamagedFile::raise(
          (folder_ / place.file).string(),
          fmt::format("{} bytes from {} on are asked for, and it has {}; it is cut off", length, offset, all.size()));
    }
    return all.subspan(offset, length);
  }
  [[nodiscard]] std::string name_of(const Place& place) const { return (folder_ / place.file).string(); }

 private:
  fs::path folder_;
  std::map<std::string, std::shared_ptr<const MappedFile>> open_;
};

at::Tensor read_whole(const Whole& whole, Files& files) {
  const at::NoGradGuard no_grad;
  const auto read = [&](const Part& part) {
    at::Tensor tensor = read_torch_tensor(files.bytes_of(part.place), files.name_of(part.place));
    if (tensor.scalar_type() != whole.type || tensor.sizes() != at::IntArrayRef(part.sizes))
      DamagedFile::raise(files.name_of(part.place),
                         "a tensor in it is of another type or shape than its metadata says");
    return tensor;
  };
  if (whole.parts.size() == 1) return read(whole.parts.front());
  for (const Part& part : whole.parts) {  // before there is memory for all of it
    if (std::cmp_greater(elements_of(part.sizes), files.bytes_of(part.place).size()))
      DamagedFile::raise(files.name_of(part.place), "a part of a tensor is larger than its place in the file");
  }
  at::Tensor all = at::empty(whole.sizes, whole.type);
  for (const Part& part : whole.parts) {
    at::Tensor to = all;
    for (std::size_t d = 0; d < part.sizes.size(); ++d)
      to = to.narrow(static_cast<std::int64_t>(d), part.offsets[d], part.sizes[d]);
    to.copy_(read(part));
  }
  return all;
}

}  // namespace

bool is_torch_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_regular_file(folder / kMetadata, ignored);
}

StoredTensors open_torch_checkpoint(const fs::path& folder) {
  const std::shared_ptr<const MappedFile> file = map_weights(folder / kMetadata);
  const Fields fields((folder / kMetadata).string());
  if (std::cmp_greater(file->bytes().size(), kLargestMetadata)) {
    throw UsageError(
        fmt::format("opening a checkpoint: {} has {}, and at most {} are read, as their objects take many times that; "
                    "save the model from fewer processes",
                    (folder / kMetadata).string(), format_bytes(static_cast<Bytes>(file->bytes().size())),
                    format_bytes(kLargestMetadata)));
  }
  const PickleFile pickle(file->bytes(), (folder / kMetadata).string());
  const std::map<std::string, Whole> all = tensors_in(fields, pickle.root());
  const auto keys = keys_in(fields, pickle.root());
  // {"model": ...}, perhaps inside of something else that was saved.
  const auto in_model = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = keys.find(name);
    if (found == keys.end() || found->second.size() < 2 || *(found->second.end() - 2) != "model") return std::nullopt;
    return found->second.back();
  };
  const bool has_model = std::ranges::any_of(all, [&](const auto& one) { return in_model(one.first).has_value(); });
  StoredTensors tensors;
  for (const auto& [name, whole] : all) {
    const std::optional<std::string> own = has_model ? in_model(name) : std::optional(name);
    if (!own) continue;
    const auto [there, is_new] =
        tensors.emplace(*own, StoredTensor{.dtype = whole.type, .shape = whole.sizes, .read = [whole = whole, folder] {
                                             Files files(folder);
                                             return read_whole(whole, files);
                                           }});
    if (!is_new) {
      throw UsageError(
          fmt::format("{}: {} is there in two models, in one of them as {}; save the model that is meant alone",
                      folder.string(), *own, name));
    }
  }
  return tensors;
}

}  // namespace snug::state
