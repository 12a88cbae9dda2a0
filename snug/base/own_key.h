#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "snug/base/range.h"

namespace snug {

/// What a key of one member of an open set holds: the type of its default is the key's.
using OwnValue = std::variant<std::int64_t, double, std::string>;

/// Whether a run that goes on from a state may have another value than the run that saved it.
enum class Resumed : unsigned char { Same, Free };

/// A key of the configuration that one member of an open set (an optimizer, a family of models) declares beside itself,
/// as others do without it. Members that share a name share the whole key.
struct OwnKey {
  std::string_view name;  ///< inside its section
  OwnValue otherwise;     ///< the default
  std::string_view help;
  Range range;                 ///< of numbers; texts may be anything
  std::string_view instead{};  ///< what to use with members that have no such key, the end of a message; may be empty
  Resumed resumed = Resumed::Same;
};

/// Values by name. Those of keys that are read must be there: std::out_of_range else, and std::bad_variant_access for
/// the other type.
struct OwnValues {
  std::map<std::string, OwnValue, std::less<>> by_name;

  [[nodiscard]] std::int64_t integer(const std::string& name) const { return std::get<std::int64_t>(by_name.at(name)); }
  [[nodiscard]] double number(const std::string& name) const { return std::get<double>(by_name.at(name)); }
  [[nodiscard]] const std::string& text(const std::string& name) const {
    return std::get<std::string>(by_name.at(name));
  }
  void set(std::string_view name, OwnValue value) { by_name.insert_or_assign(std::string(name), std::move(value)); }

  bool operator==(const OwnValues&) const = default;
};

/// The defaults of every key of `members`, each with `keys`.
template <class Members>
OwnValues own_defaults(const Members& members) {
  OwnValues values;
  for (const auto* member : members) {
    for (const OwnKey& key : member->keys) values.by_name.emplace(key.name, key.otherwise);
  }
  return values;
}

}  // namespace snug
