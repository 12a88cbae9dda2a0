#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "snug/base/byte_cursor.h"
#include "snug/base/field.h"

namespace snug {

/// No string or array in a GGUF file is longer.
inline constexpr std::uint64_t kLongestGguf = std::uint64_t{1} << 30;

/// A value of a GGUF file's metadata. Integers and floats of all widths are widened.
using GgufValue =
    std::variant<std::uint64_t, std::int64_t, double, bool, std::string, std::vector<std::uint64_t>,
                 std::vector<std::int64_t>, std::vector<double>, std::vector<bool>, std::vector<std::string>>;
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

/// What a GGUF file begins with.
struct GgufPreamble {
  std::uint32_t version = 0;
  std::uint64_t tensors = 0;  ///< how many are described behind it
  GgufMetadata metadata;
};

/// Reads it, of version 2 or 3, and leaves the cursor behind it. Memory: a small multiple of what it reads, whatever
/// the file claims. Throws DamagedFile.
GgufPreamble take_gguf_preamble(ByteCursor& from);

/// Metadata that is read field by field. A default is for a key that is not there, and not for one that has another
/// type, which is refused as FieldSource says. The metadata must outlive it.
class GgufFields {
 public:
  GgufFields(const GgufMetadata& metadata, FieldSource source) : metadata_(metadata), source_(std::move(source)) {}

  template <class T>
  [[nodiscard]] std::optional<T> find(std::string_view key, const Range& range = kAnyNumber) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return std::nullopt;
    if constexpr (kIsList<T>) {
      if (const T* const list = std::get_if<T>(&found->second)) return *list;
    } else {
      if (std::optional<T> value = value_as<T>(value_of(found->second), range)) return value;
    }
    source_.refuse(key, shown(found->second), expected<T>(range));
  }
  template <class T>
  [[nodiscard]] T optional(std::string_view key, T otherwise, const Range& range = kAnyNumber) const {
    std::optional<T> value = find<T>(key, range);
    return value ? std::move(*value) : std::move(otherwise);
  }
  template <class T>
  [[nodiscard]] T required(std::string_view key, const Range& range = kAnyNumber) const {
    std::optional<T> value = find<T>(key, range);
    if (!value) source_.miss(key, expected<T>(range));
    return std::move(*value);
  }
  /// What is there is refused.
  [[noreturn]] void refuse(std::string_view key, std::string_view wanted) const {
    source_.refuse(key, shown(metadata_.find(key)->second), wanted);
  }
  [[noreturn]] void fail(std::string_view what) const { source_.fail(what); }

 private:
  template <class T>
  static std::string expected(const Range& range) {
    if constexpr (kIsList<T>) {
      return fmt::format("a list, each {}", expectation<typename T::value_type>());
    } else {
      return expectation<T>(range);
    }
  }
  static FieldValue value_of(const GgufValue& value);
  static std::string shown(const GgufValue& value);

  const GgufMetadata& metadata_;
  FieldSource source_;
};

}  // namespace snug
