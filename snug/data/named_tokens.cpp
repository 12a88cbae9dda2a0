#include "snug/data/named_tokens.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

using Json = nlohmann::json;

class TokensReader {
 public:
  TokensReader(std::string_view text, std::string_view name)
      : json_(Json::parse(text, nullptr, /*allow_exceptions=*/false)), name_(name) {
    if (!json_.is_object()) fail("it is no JSON object");
  }

  /// Null where there is none, or it is null.
  static const Json* member(const Json& json, const char* key) {
    const auto found = json.is_object() ? json.find(key) : json.end();
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] const Json& root() const { return json_; }

  void add(const Json* text, const Json* id) {
    if (text == nullptr || !text->is_string() || id == nullptr || !id->is_number_unsigned() ||
        *id > static_cast<std::uint64_t>(std::numeric_limits<TokenId>::max())) {
      fail("one of its tokens has no text or no id");
    }
    tokens_.push_back({text->get<std::string>(), id->get<TokenId>()});
  }

  /// {"text": id}
  void add_ids_by_text(const Json& tokens) {
    if (!tokens.is_object()) fail("its tokens are no object");
    for (const auto& [text, id] : tokens.items()) {
      const Json written = text;
      add(&written, &id);
    }
  }

  /// [["text", score]], by their places.
  void add_scores(const Json& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const Json id = i;
      add(tokens[i].is_array() && !tokens[i].empty() ? &tokens[i][0] : nullptr, &id);
    }
  }

  /// [{"id": id, "content": "text"}]
  void add_described(const Json& tokens) {
    for (const Json& token : tokens) add(member(token, "content"), member(token, "id"));
  }

  /// {"id": {"content": "text"}}
  void add_texts_by_id(const Json& tokens) {
    for (const auto& [number, token] : tokens.items()) {
      std::uint64_t id = 0;
      const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), id);
      const Json known = error == std::errc() && end == number.data() + number.size() ? Json(id) : Json();
      add(member(token, "content"), &known);
    }
  }

  std::vector<NamedToken> take() { return std::move(tokens_); }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw UsageError(fmt::format("tokenizer: {}: {}", name_, what));
  }

  Json json_;
  std::string_view name_;
  std::vector<NamedToken> tokens_;
};

}  // namespace

std::vector<NamedToken> tokens_of_tokenizer_json(std::string_view json, std::string_view name) {
  TokensReader reader(json, name);
  const Json* const model = TokensReader::member(reader.root(), "model");
  if (const Json* const vocabulary = model != nullptr ? TokensReader::member(*model, "vocab") : nullptr) {
    if (vocabulary->is_array()) {
      reader.add_scores(*vocabulary);
    } else {
      reader.add_ids_by_text(*vocabulary);
    }
  }
  if (const Json* const added = TokensReader::member(reader.root(), "added_tokens")) reader.add_described(*added);
  return reader.take();
}

std::vector<NamedToken> tokens_of_added_tokens_json(std::string_view json, std::string_view name) {
  TokensReader reader(json, name);
  reader.add_ids_by_text(reader.root());
  return reader.take();
}

std::vector<NamedToken> tokens_of_tokenizer_config(std::string_view json, std::string_view name) {
  TokensReader reader(json, name);
  if (const Json* const added = TokensReader::member(reader.root(), "added_tokens_decoder"))
    reader.add_texts_by_id(*added);
  return reader.take();
}

}  // namespace snug::data
