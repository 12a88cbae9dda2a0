#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "snug/base/range.h"

/// What readers of files by field share, whatever the format: values, what they are asked to be, and what is said where
/// they are something else. json_field.h and gguf_metadata.h have the readers.
namespace snug {

/// A file whose fields are read.
struct FieldSource {
  std::string name{};  ///< in front of messages: "tokenizer: path/tokenizer.json"
  std::string cure{};  ///< behind them, what to do; may be empty
  /// Throws what is thrown of such a file; null: UsageError.
  void (*raise)(std::string_view name, std::string_view what) = nullptr;

  /// Throws "name: what".
  [[noreturn]] void fail(std::string_view what) const;
  /// Throws "name: its path is shown; it must be expected; cure". `path`: empty for all of the file.
  [[noreturn]] void refuse(std::string_view path, std::string_view shown, std::string_view expected) const;
  /// Throws "name: it has no path, which must be expected; cure".
  [[noreturn]] void miss(std::string_view path, std::string_view expected) const;
};

/// One value; nothing for null and for what holds others.
using FieldValue = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string_view>;

/// Any that is finite.
inline constexpr Range kAnyNumber{.low = -kNoLimit};

/// A text in quotes as messages have it: shortened, on one line, and valid UTF-8 whatever it was.
std::string quoted_text(std::string_view text);

template <class T>
inline constexpr bool kIsList = false;
template <class T>
inline constexpr bool kIsList<std::vector<T>> = true;

/// The value as a T (bool, std::string, an integer or a floating-point type): an integer only where T has it, and
/// numbers only inside the range. nullopt for everything else.
template <class T>
std::optional<T> value_as(const FieldValue& value, const Range& range = kAnyNumber) {
  return std::visit(
      [&range]([[maybe_unused]] const auto& held) -> std::optional<T> {
        using Held = std::remove_cvref_t<decltype(held)>;
        constexpr bool kIsWhole = std::is_same_v<Held, std::int64_t> || std::is_same_v<Held, std::uint64_t>;
        if constexpr (std::is_same_v<T, bool>) {
          if constexpr (std::is_same_v<Held, bool>) return held;
        } else if constexpr (std::is_integral_v<T>) {
          if constexpr (kIsWhole) {
            if (std::in_range<T>(held) && keeps(range, held)) return static_cast<T>(held);
          }
        } else if constexpr (std::is_floating_point_v<T>) {
          if constexpr (kIsWhole || std::is_same_v<Held, double>) {
            if (keeps(range, held)) return static_cast<T>(held);
          }
        } else {
          static_assert(std::is_same_v<T, std::string>);
          if constexpr (std::is_same_v<Held, std::string_view>) return std::string(held);
        }
        return std::nullopt;
      },
      value);
}

/// What value_as takes, the end of "it must be ...".
template <class T>
std::string expectation(const Range& range = kAnyNumber) {
  const bool any = range.low == -kNoLimit;
  if constexpr (kIsList<T>) {
    return "an array";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else if constexpr (std::is_integral_v<T>) {
    if (!any) return fmt::format("an integer, {}", describe(range));
    return fmt::format("an integer from {} to {}", std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
  } else {
    return any ? "a number" : fmt::format("a number, {}", describe(range));
  }
}

}  // namespace snug
