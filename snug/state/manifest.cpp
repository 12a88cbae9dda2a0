#include "snug/state/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "snug/base/damaged_file.h"
#include "snug/base/hash.h"
#include "snug/base/json_field.h"

namespace snug::state {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::size_t kHashDigits = 32;

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

bool is_hash(std::string_view text) {
  return text.size() == kHashDigits &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

std::string hash_of(std::string_view bytes) { return hash_128(std::as_bytes(std::span(bytes))); }

std::string format_manifest(const Manifest& m) {
  OrderedJson files = OrderedJson::object();
  for (const auto& [name, file] : m.files) files[name] = {{"bytes", file.bytes}, {"xxh3_128", file.hash}};
  const OrderedJson json = {{"snug_training_state", kVersion},
                            {"step", m.step},
                            {"metric", m.metric ? OrderedJson(*m.metric) : OrderedJson()},
                            {"files", files}};
  const std::string line = json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return line + "\n" + hash_of(line) + "\n";
}

Manifest parse_manifest(std::string_view text, std::string_view name) {
  const auto fail = [&](std::string_view what) { throw DamagedFile(name, what); };
  // The hash first: what follows reads only what was written.
  constexpr std::size_t kTail = kHashDigits + 2;
  if (text.size() < kTail || text.back() != '\n' || text[text.size() - kTail] != '\n')
    fail("it does not end in a hash");
  const std::string_view line = text.substr(0, text.size() - kTail);
  if (text.substr(line.size() + 1, kHashDigits) != hash_of(line)) fail("its hash is not that of its text");
  const JsonFile file(line, {.name = std::string(name), .raise = DamagedFile::raise});
  const JsonField json = file.root();
  if (const auto version = json.required<std::int64_t>("snug_training_state"); version != kVersion) {
    fail(fmt::format("it is of version {}, and this program reads {}", version, kVersion));
  }
  Manifest m;
  m.step = json.required<std::int64_t>("step", kNotNegative);
  if (const auto metric = json.find("metric")) m.metric = metric->as<double>();
  for (const auto& [name_of_file, entry] : json.at("files").members()) {
    if (!is_plain_name(name_of_file)) fail(fmt::format("{} is no file's name", quoted_text(name_of_file)));
    const auto hash = entry.required<std::string>("xxh3_128");
    if (!is_hash(hash)) entry.at("xxh3_128").refuse("32 hexadecimal digits");
    m.files.emplace(name_of_file, Manifest::File{entry.required<std::uint64_t>("bytes"), hash});
  }
  return m;
}

}  // namespace snug::state
