#include "snug/base/toml.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

// The library's own headers are not held to our warnings.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include <toml++/toml.h>
#pragma GCC diagnostic pop

#include "snug/base/comma_list.h"
#include "snug/base/errors.h"
#include "snug/base/text_file.h"

namespace snug {
namespace {

using nlohmann::ordered_json;

ordered_json to_json(const toml::node& node);

bool is_date_or_time(const toml::node& node) { return node.is_date() || node.is_time() || node.is_date_time(); }

ordered_json table_to_json(const toml::table& table) {
  std::vector<std::pair<std::string_view, const toml::node*>> entries;
  for (const auto& [key, node] : table) entries.emplace_back(key.str(), &node);
  // toml++ sorts keys by name; their place in the text is what the writer meant.
  std::ranges::stable_sort(entries, [](const auto& a, const auto& b) {
    const auto place = [](const toml::node* node) {
      return std::pair(node->source().begin.line, node->source().begin.column);
    };
    return place(a.second) < place(b.second);
  });
  ordered_json result = ordered_json::object();
  for (const auto& [key, node] : entries) result[std::string(key)] = to_json(*node);
  return result;
}

ordered_json to_json(const toml::node& node) {
  if (const toml::table* table = node.as_table()) return table_to_json(*table);
  if (const toml::array* array = node.as_array()) {
    ordered_json result = ordered_json::array();
    for (const toml::node& element : *array) result.push_back(to_json(element));
    return result;
  }
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  std::ostringstream text;
  if (const auto* date = node.as_date()) text << date->get();
  if (const auto* time = node.as_time()) text << time->get();
  if (const auto* both = node.as_date_time()) text << both->get();
  return text.str();
}

std::string one_line(std::string_view text) {
  std::string result(text);
  std::ranges::replace_if(
      result, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return result;
}

}  // namespace

ordered_json read_toml(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError(fmt::format("reading TOML: {} is a folder; name the file in it", path.string()));
  }
  constexpr std::size_t kMostToml = std::size_t{1} << 20;  // more than any is that somebody wrote
  const std::string text = [&] {
    try {
      return read_text(path, kMostToml);
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::file_too_large) {
        throw UsageError(
            fmt::format("reading TOML: {} has more than {} bytes, the most that such a file may have; name "
                        "the configuration",
                        path.string(), kMostToml));
      }
      throw UsageError(
          fmt::format("reading TOML: cannot read {}: {}; check the path", path.string(), error.code().message()));
    }
  }();
  return parse_toml(text, path.string());
}

ordered_json parse_toml(std::string_view text, std::string_view name) {
  try {
    return table_to_json(toml::parse(text, name));
  } catch (const toml::parse_error& error) {
    const toml::source_position where = error.source().begin;
    throw UsageError(
        fmt::format("{}:{}:{}: not valid TOML: {}", name, where.line, where.column, one_line(error.description())));
  }
}

ordered_json parse_toml_value(std::string_view text) {
  const std::string_view value = trimmed(text);
  try {
    const toml::table table = toml::parse(fmt::format("value = {}", value));
    const toml::node* node = table.get("value");
    // A line break can smuggle in a second key; then the text as a whole is no value.
    if (node != nullptr && table.size() == 1 && !is_date_or_time(*node)) return to_json(*node);
  } catch (const toml::parse_error& error) {
    if (!value.empty() && std::string_view("\"'[{").find(value.front()) != std::string_view::npos) {
      throw UsageError(fmt::format("value: {} is not a valid TOML value: {}; close what it opens, or quote all of it",
                                   one_line(value), one_line(error.description())));
    }
  }
  return std::string(value);
}

}  // namespace snug
