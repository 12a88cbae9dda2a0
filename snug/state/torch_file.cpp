#include "snug/state/torch_file.h"

#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/damaged_file.h"
#include "snug/base/pickle.h"

namespace snug::state {
namespace {

/// An archive in memory.
class InMemory final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit InMemory(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  size_t size() const override { return bytes_.size(); }
  size_t read(uint64_t position, void* to, size_t count, const char* /*what*/) const override {
    if (position >= bytes_.size()) return 0;
    const size_t there = std::min<size_t>(count, bytes_.size() - position);
    std::memcpy(to, bytes_.data() + position, there);
    return there;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

struct NamedType {
  std::string_view type, storage;
  at::ScalarType is;
};
constexpr std::array<NamedType, 12> kStorageTypes = {
    {{"torch.float32", "torch.FloatStorage", at::kFloat},
     {"torch.float64", "torch.DoubleStorage", at::kDouble},
     {"torch.float16", "torch.HalfStorage", at::kHalf},
     {"torch.bfloat16", "torch.BFloat16Storage", at::kBFloat16},
     {"torch.int64", "torch.LongStorage", at::kLong},
     {"torch.int32", "torch.IntStorage", at::kInt},
     {"torch.int16", "torch.ShortStorage", at::kShort},
     {"torch.int8", "torch.CharStorage", at::kChar},
     {"torch.uint8", "torch.ByteStorage", at::kByte},
     {"torch.bool", "torch.BoolStorage", at::kBool},
     {"torch.complex64", "torch.ComplexFloatStorage", at::kComplexFloat},
     {"torch.complex128", "torch.ComplexDoubleStorage", at::kComplexDouble}}};

/// How a pickle says that a tensor lies in its storage.
struct Layout {
  at::ScalarType type;
  std::string record;  // of the archive
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes, strides;
};

class Pickle {
 public:
  Pickle(const Pickled& root, std::string_view name) : root_(root), name_(name) {}

  [[nodiscard]] Layout layout() const {
    const Pickled* tensor = &root_;
    const auto* object = std::get_if<Pickled::Object>(&tensor->value);
    if (object != nullptr && object->made_by == "torch._utils._rebuild_parameter" && !object->arguments.empty())
      object = std::get_if<Pickled::Object>(&object->arguments.front()->value);
    if (object == nullptr || object->made_by != "torch._utils._rebuild_tensor_v2" || object->arguments.size() < 4)
      DamagedFile::raise(name_, "it holds no dense tensor");
    const auto& given = object->arguments;
    const auto* const beside = std::get_if<Pickled::Beside>(&given[0]->value);
    const auto* const id = beside != nullptr ? std::get_if<Pickled::List>(&beside->id->value) : nullptr;
    if (id == nullptr || id->size() != 5) DamagedFile::raise(name_, "its tensor has no storage");
    const auto* const storage = std::get_if<Pickled::Global>(&(*id)[1]->value);
    const auto* const key = std::get_if<Pickled::Text>(&(*id)[2]->value);
    const auto* const found =
        storage == nullptr ? kStorageTypes.end() : std::ranges::find(kStorageTypes, storage->name, &NamedType::storage);
    if (found == kStorageTypes.end() || key == nullptr) {
      DamagedFile::raise(name_, fmt::format("its tensor lies in a {}, which is not read",
                                            storage != nullptr ? storage->name : "storage without a name"));
    }
    return {.type = found->is,
            .record = "data/" + key->text,
            .offset = number(*given[1]),
            .sizes = numbers(*given[2]),
            .strides = numbers(*given[3])};
  }

 private:
  [[nodiscard]] std::int64_t number(const Pickled& value) const {
    const auto* const found = std::get_if<std::int64_t>(&value.value);
    if (found == nullptr || *found < 0) DamagedFile::raise(name_, "its tensor's sizes are no numbers from 0 on");
    return *found;
  }
  [[nodiscard]] std::vector<std::int64_t> numbers(const Pickled& value) const {
    const auto* const list = std::get_if<Pickled::List>(&value.value);
    if (list == nullptr) DamagedFile::raise(name_, "its tensor has no sizes");
    std::vector<std::int64_t> all;
    for (const Pickled* const one : *list) all.push_back(number(*one));
    return all;
  }
  const Pickled& root_;
  std::string_view name_;
};

/// Elements that it reaches in its storage; nullopt for more than there can be.
std::optional<std::uint64_t> reach_of(const Layout& layout) {
  std::uint64_t last = static_cast<std::uint64_t>(layout.offset);
  for (std::size_t i = 0; i < layout.sizes.size(); ++i) {
    if (layout.sizes[i] == 0) return 0;
    std::uint64_t more = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(layout.sizes[i] - 1),
                               static_cast<std::uint64_t>(layout.strides[i]), &more) ||
        __builtin_add_overflow(last, more, &last))
      return std::nullopt;
  }
  return last + 1;
}

}  // namespace

std::optional<at::ScalarType> scalar_type_named(std::string_view name) {
  const auto* const found = std::ranges::find(kStorageTypes, name, &NamedType::type);
  return found != kStorageTypes.end() ? std::optional(found->is) : std::nullopt;
}

at::Tensor read_torch_tensor(std::span<const std::uint8_t> bytes, std::string_view name) {
  const auto in_archive = [&](const auto& read) {
    try {
      return read();
    } catch (const DamagedFile&) {
      throw;
    } catch (const c10::Error& error) {
      DamagedFile::raise(
          name, fmt::format("it is no archive of torch.save(), or is damaged: {}", error.what_without_backtrace()));
    }
  };
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> archive = in_archive(
      [&] { return std::make_unique<caffe2::serialize::PyTorchStreamReader>(std::make_shared<InMemory>(bytes)); });
  // Nothing in it is compressed.
  const auto size_of = [&](const std::string& record) {
    const std::size_t size = in_archive([&] { return archive->getRecordSize(record); });
    if (size > bytes.size())
      DamagedFile::raise(name, fmt::format("{} in it has {} bytes, and all of it {}", record, size, bytes.size()));
    return size;
  };
  const auto text_of = [&](const std::string& record) {
    (void)size_of(record);
    const auto [data, size] = in_archive([&] { return archive->getRecord(record); });
    return std::string(static_cast<const char*>(data.get()), size);
  };
  if (in_archive([&] { return archive->hasRecord("byteorder"); }) && text_of("byteorder") != "little")
    DamagedFile::raise(name, "its numbers have their large digits first, which is not read");
  const std::string pickle = text_of("data.pkl");
  const PickleFile read({reinterpret_cast<const std::uint8_t*>(pickle.data()), pickle.size()}, name);
  const Layout layout = Pickle(read.root(), name).layout();
  const auto item = static_cast<std::uint64_t>(c10::elementSize(layout.type));
  const auto reach = layout.sizes.size() == layout.strides.size() ? reach_of(layout) : std::nullopt;
  const std::size_t there = size_of(layout.record);
  if (!reach || *reach > there / item)
    DamagedFile::raise(name, fmt::format("its tensor reaches beyond the {} bytes of its storage", there));
  const at::Tensor storage = at::empty({static_cast<std::int64_t>(there / item)}, layout.type);
  if (storage.numel() > 0)
    in_archive([&] { return archive->getRecord(layout.record, storage.mutable_data_ptr(), storage.nbytes()); });
  return in_archive([&] { return storage.as_strided(layout.sizes, layout.strides, layout.offset); });
}

}  // namespace snug::state
