#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "snug/base/errors.h"

namespace snug::models {

/// A model that was released, under the name it is known by.
template <class Options>
struct Released {
  const char* name;
  Options options;
};

/// `all` is a container of Released.
template <class All>
std::vector<std::string> released_names(const All& all) {
  std::vector<std::string> names;
  for (const auto& released : all) names.emplace_back(released.name);
  return names;
}

/// The options under that name. Throws UsageError that begins with the name of the family and lists those there are.
template <class All>
auto released_options(std::string_view family, const All& all, std::string_view name) {
  for (const auto& released : all) {
    if (released.name == name) return released.options;
  }
  throw UsageError(
      fmt::format("{}: no model \"{}\"; there are {}", family, name, fmt::join(released_names(all), ", ")));
}

}  // namespace snug::models
