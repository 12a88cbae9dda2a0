#include "snug/base/gguf_metadata.h"

#include <type_traits>

namespace snug {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"

enum class ValueType : std::uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };

template <class T>
using Widened =
    std::conditional_t<std::is_same_v<T, bool>, bool,
                       std::conditional_t<std::is_floating_point_v<T>, double,
                                          std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>>;

template <class T>
Widened<T> take_scalar(ByteCursor& from, const std::string& what) {
  if constexpr (std::is_same_v<T, bool>) {
    return from.take<std::uint8_t>(what) != 0;
  } else {
    return static_cast<Widened<T>>(from.take<T>(what));
  }
}

/// Calls with a value of the C++ type that a number in the file stands for.
template <class Call>
GgufValue with_scalar_type(ByteCursor& from, ValueType type, const std::string& what, Call&& call) {
  switch (type) {
    case ValueType::U8:
      return call(std::uint8_t{});
    case ValueType::I8:
      return call(std::int8_t{});
    case ValueType::U16:
      return call(std::uint16_t{});
    case ValueType::I16:
      return call(std::int16_t{});
    case ValueType::U32:
      return call(std::uint32_t{});
    case ValueType::I32:
      return call(std::int32_t{});
    case ValueType::U64:
      return call(std::uint64_t{});
    case ValueType::I64:
      return call(std::int64_t{});
    case ValueType::F32:
      return call(float{});
    case ValueType::F64:
      return call(double{});
    case ValueType::Bool:
      return call(bool{});
    case ValueType::String:
    case ValueType::Array:
      break;
  }
  from.fail("{}: {} is no type of value", what, static_cast<std::uint32_t>(type));
}

GgufValue take_array(ByteCursor& from, const std::string& what) {
  const auto type = static_cast<ValueType>(from.take<std::uint32_t>(what));
  const auto length = from.take<std::uint64_t>(what);
  if (length > kLongestGguf) from.fail("{}: an array of {}; the format allows {}", what, length, kLongestGguf);
  if (type == ValueType::Array) from.fail("{}: an array of arrays, which no model has", what);
  if (type == ValueType::String) {
    from.need(length * sizeof(std::uint64_t), what);
    std::vector<std::string> all;
    all.reserve(static_cast<std::size_t>(length));
    for (std::uint64_t i = 0; i < length; ++i) all.push_back(from.take_string(what, kLongestGguf));
    return all;
  }
  return with_scalar_type(from, type, what, [&]<class T>(T) -> GgufValue {
    from.need(length * (std::is_same_v<T, bool> ? 1 : sizeof(T)), what);
    std::vector<Widened<T>> all;
    all.reserve(static_cast<std::size_t>(length));
    for (std::uint64_t i = 0; i < length; ++i) all.push_back(take_scalar<T>(from, what));
    return all;
  });
}

GgufValue take_value(ByteCursor& from, const std::string& what) {
  const auto type = static_cast<ValueType>(from.take<std::uint32_t>(what));
  if (type == ValueType::String) return from.take_string(what, kLongestGguf);
  if (type == ValueType::Array) return take_array(from, what);
  return with_scalar_type(from, type, what, [&]<class T>(T) -> GgufValue { return take_scalar<T>(from, what); });
}

}  // namespace

GgufPreamble take_gguf_preamble(ByteCursor& from) {
  if (from.take<std::uint32_t>("the mark of the format") != kMagic)
    from.fail("no GGUF file: it does not begin with \"GGUF\"; give one, or a folder as transformers saves models");
  GgufPreamble preamble;
  preamble.version = from.take<std::uint32_t>("the version");
  if ((preamble.version & 0xFFFFU) == 0) from.fail("the file is big-endian; convert it");
  if (preamble.version != 2 && preamble.version != 3) {
    from.fail("version {} of the format; snug reads 2 and 3: convert the file again", preamble.version);
  }
  preamble.tensors = from.take<std::uint64_t>("the number of tensors");
  const auto values = from.take<std::uint64_t>("the number of values");
  for (std::uint64_t i = 0; i < values; ++i) {
    const std::string key = from.take_string(fmt::format("value {}", i), kLongestGguf);
    if (!preamble.metadata.emplace(key, take_value(from, key)).second) from.fail("the key {} is there twice", key);
  }
  return preamble;
}

FieldValue GgufFields::value_of(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> FieldValue {
        using Held = std::remove_cvref_t<decltype(held)>;
        if constexpr (kIsList<Held>) {
          return {};
        } else if constexpr (std::is_same_v<Held, std::string>) {
          return std::string_view(held);
        } else {
          return held;
        }
      },
      value);
}

std::string GgufFields::shown(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::remove_cvref_t<decltype(held)>;
        if constexpr (kIsList<Held>) {
          return fmt::format("a list of {}", held.size());
        } else if constexpr (std::is_same_v<Held, std::string>) {
          return quoted_text(held);
        } else {
          return fmt::format("{}", held);
        }
      },
      value);
}

}  // namespace snug
