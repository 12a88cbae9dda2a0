#include "snug/state/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "snug/base/hash.h"
#include "snug/state/damaged_file.h"

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
  const OrderedJson json = OrderedJson::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("snug_training_state")) fail("it is no manifest of a training state");
  if (json["snug_training_state"] != kVersion) {
    fail(fmt::format("it is of version {}, and this program reads {}", json["snug_training_state"].dump(), kVersion));
  }
  Manifest m;
  if (!json.contains("step") || !json["step"].is_number_unsigned()) fail("it has no step");
  m.step = json["step"].get<std::int64_t>();
  if (m.step < 0) fail("its step is too large");
  if (json.contains("metric") && json["metric"].is_number()) m.metric = json["metric"].get<double>();
  if (!json.contains("files") || !json["files"].is_object()) fail("it has no files");
  for (const auto& [file, entry] : json["files"].items()) {
    if (!is_plain_name(file)) fail(fmt::format("\"{}\" is no file's name", file));
    if (!entry.is_object() || !entry.contains("bytes") || !entry["bytes"].is_number_unsigned() ||
        !entry.contains("xxh3_128") || !entry["xxh3_128"].is_string() ||
        !is_hash(entry["xxh3_128"].get_ref<const std::string&>())) {
      fail(fmt::format("it has no size or no hash for {}", file));
    }
    m.files.emplace(file, Manifest::File{entry["bytes"].get<std::uint64_t>(), entry["xxh3_128"].get<std::string>()});
  }
  return m;
}

}  // namespace snug::state
