#include "snug/base/json_field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "snug/base/shortened.h"

namespace snug {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kLongestShown = 80, kLongestPath = 160;  // bytes
constexpr int kDeepestShown = 4;

/// Appends what is inside up to a depth, and not much more than can be shown. nlohmann's own dump() descends without an
/// end.
void show(const Json& json, int depth, std::string& out) {
  if (json.is_string()) {
    out += quoted_text(json.get_ref<const std::string&>());
  } else if (!json.is_structured()) {
    out += json.dump();
  } else {
    out += json.is_array() ? '[' : '{';
    if (depth == kDeepestShown && !json.empty()) out += "...";
    for (auto item = json.begin(); depth < kDeepestShown && item != json.end() && out.size() <= kLongestShown; ++item) {
      if (item != json.begin()) out += ',';
      if (json.is_object()) out += quoted_text(item.key()) + ":";
      show(*item, depth + 1, out);
    }
    out += json.is_array() ? ']' : '}';
  }
}

void add_key(std::string& path, std::string_view key) {
  const bool plain = !key.empty() && key.size() <= kLongestShown && std::ranges::all_of(key, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  });
  path += plain ? fmt::format("{}{}", path.empty() ? "" : ".", key) : fmt::format("[{}]", quoted_text(key));
}

/// Where a value stands, which is looked for when there is something to say of it.
std::string path_to(const Json& wanted, const Json& root) {
  struct Level {
    const Json* json;
    Json::const_iterator child;
  };
  std::vector<Level> way{{&root, root.begin()}};
  while (way.back().json != &wanted) {
    const Level last = way.back();
    if (last.json->is_structured() && last.child != last.json->end()) {
      way.push_back({&*last.child, last.child->begin()});
      continue;
    }
    way.pop_back();
    if (way.empty()) return {};
    ++way.back().child;
  }
  way.pop_back();
  std::string path;
  for (const Level& level : way) {
    if (path.size() > kLongestPath) return shortened(path, kLongestPath);
    if (level.json->is_object()) {
      add_key(path, level.child.key());
    } else {
      path += fmt::format("[{}]", level.child - level.json->begin());
    }
  }
  return path;
}

}  // namespace

JsonFile::JsonFile(std::shared_ptr<const Json> json, FieldSource source)
    : source_(std::move(source)), json_(std::move(json)) {
  if (!json_->is_discarded()) return;
  source_.fail(fmt::format("it is no JSON, or not whole{}{}", source_.cure.empty() ? "" : "; ", source_.cure));
}

JsonFile::JsonFile(std::string_view text, FieldSource source)
    : JsonFile(std::make_shared<const Json>(Json::parse(text, nullptr, /*allow_exceptions=*/false)),
               std::move(source)) {}

JsonFile JsonFile::parsed(const Json& json, FieldSource source) {
  return {std::shared_ptr<const Json>(std::shared_ptr<void>(), &json), std::move(source)};
}

JsonField JsonFile::root() const { return {json_.get(), this}; }

std::optional<JsonField> JsonField::find(std::string_view key) const {
  if (!json_->is_object()) refuse("an object");
  const auto found = json_->find(key);
  if (found == json_->end() || found->is_null()) return std::nullopt;
  return JsonField(&*found, file_);
}

JsonField JsonField::member(std::string_view key, std::string_view expected) const {
  if (const std::optional<JsonField> found = find(key)) return *found;
  std::string missing = path();
  add_key(missing, key);
  file_->source().miss(missing, expected);
}

std::vector<std::pair<std::string_view, JsonField>> JsonField::members() const {
  if (!json_->is_object()) refuse("an object");
  std::vector<std::pair<std::string_view, JsonField>> all;
  all.reserve(json_->size());
  for (auto item = json_->begin(); item != json_->end(); ++item) all.emplace_back(item.key(), JsonField(&*item, file_));
  return all;
}

JsonField JsonField::at(std::size_t index) const {
  if (!json_->is_array() || index >= json_->size()) refuse(fmt::format("an array of {} or more", index + 1));
  return {&(*json_)[index], file_};
}

std::vector<JsonField> JsonField::items() const {
  if (!json_->is_array()) refuse("an array");
  std::vector<JsonField> all;
  all.reserve(json_->size());
  for (const Json& item : *json_) all.push_back(JsonField(&item, file_));
  return all;
}

std::size_t JsonField::size() const { return json_->is_structured() ? json_->size() : 0; }
bool JsonField::is_null() const { return json_->is_null(); }
bool JsonField::is_array() const { return json_->is_array(); }
bool JsonField::is_object() const { return json_->is_object(); }

FieldValue JsonField::value() const {
  switch (json_->type()) {
    case Json::value_t::boolean:
      return json_->get<bool>();
    case Json::value_t::number_integer:
      return json_->get<std::int64_t>();
    case Json::value_t::number_unsigned:
      return json_->get<std::uint64_t>();
    case Json::value_t::number_float:
      return json_->get<double>();
    case Json::value_t::string:
      return std::string_view(json_->get_ref<const std::string&>());
    default:
      return {};
  }
}

std::string JsonField::path() const { return path_to(*json_, *file_->json_); }

std::string JsonField::shown() const {
  std::string out;
  show(*json_, 0, out);
  return shortened(out, kLongestShown);
}

void JsonField::refuse(std::string_view expected) const { file_->source().refuse(path(), shown(), expected); }

void JsonField::refuse_word(const std::vector<std::string_view>& words) const {
  std::vector<std::string> all;
  for (const std::string_view word : words) all.push_back(quoted_text(word));
  refuse(fmt::format("{}{}", all.size() > 1 ? "one of " : "", fmt::join(all, ", ")));
}

}  // namespace snug
