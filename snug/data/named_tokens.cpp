#include "snug/data/named_tokens.h"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>

#include "snug/base/json_field.h"

namespace snug::data {
namespace {

constexpr Range kId{.low = 0};

FieldSource source(std::string_view name) { return {.name = fmt::format("tokenizer: {}", name)}; }

/// {"text": id}
void add_ids_by_text(const JsonField& tokens, std::vector<NamedToken>& to) {
  for (const auto& [text, id] : tokens.members()) to.push_back({std::string(text), id.as<TokenId>(kId)});
}

/// [["text", score]], by their places.
void add_scores(const JsonField& tokens, std::vector<NamedToken>& to) {
  for (const JsonField& token : tokens.items()) {
    to.push_back({token.at(std::size_t{0}).as<std::string>(), static_cast<TokenId>(to.size())});
  }
}

/// [{"id": id, "content": "text"}]
void add_described(const JsonField& tokens, std::vector<NamedToken>& to) {
  for (const JsonField& token : tokens.items()) {
    to.push_back({token.required<std::string>("content"), token.required<TokenId>("id", kId)});
  }
}

/// {"id": {"content": "text"}}
void add_texts_by_id(const JsonField& tokens, std::vector<NamedToken>& to) {
  for (const auto& [number, token] : tokens.members()) {
    TokenId id = 0;
    const char* const last = number.data() + number.size();
    const auto [end, error] = std::from_chars(number.data(), last, id);
    if (error != std::errc() || end != last || id < 0) {
      tokens.fail(fmt::format("one of its tokens has the id {}, which is no number from 0 to {}", quoted_text(number),
                              std::numeric_limits<TokenId>::max()));
    }
    to.push_back({token.required<std::string>("content"), id});
  }
}

}  // namespace

std::vector<NamedToken> tokens_of_tokenizer_json(std::string_view json, std::string_view name) {
  const JsonFile file(json, source(name));
  std::vector<NamedToken> tokens;
  const auto model = file.root().find("model");
  if (const auto vocabulary = model ? model->find("vocab") : std::nullopt) {
    vocabulary->is_array() ? add_scores(*vocabulary, tokens) : add_ids_by_text(*vocabulary, tokens);
  }
  if (const auto added = file.root().find("added_tokens")) add_described(*added, tokens);
  return tokens;
}

std::vector<NamedToken> tokens_of_added_tokens_json(std::string_view json, std::string_view name) {
  const JsonFile file(json, source(name));
  std::vector<NamedToken> tokens;
  add_ids_by_text(file.root(), tokens);
  return tokens;
}

std::vector<NamedToken> tokens_of_tokenizer_config(std::string_view json, std::string_view name) {
  const JsonFile file(json, source(name));
  std::vector<NamedToken> tokens;
  if (const auto added = file.root().find("added_tokens_decoder")) add_texts_by_id(*added, tokens);
  return tokens;
}

}  // namespace snug::data
