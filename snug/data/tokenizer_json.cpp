#include "snug/data/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/data/tokenizer_format.h"

namespace snug::data {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kGap = 65'536;  // ids beyond the number of tokens
constexpr int kDeepest = 8;           // sequences in sequences

class TokenizerReader {
 public:
  TokenizerReader(std::string_view json, std::string_view name) : text_(json), name_(name) {}

  BytePairModel read() {
    const Json json = Json::parse(text_, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) fail("it is no JSON object");
    const Json& model = member(json, "model");
    if (text_of(model, "type", "BPE") != "BPE") {
      fail("its model is {}, and only BPE of bytes is known", text_of(model, "type", ""));
    }
    if (model.contains("byte_fallback") && model["byte_fallback"] == true) {
      fail("its model falls back to bytes, as SentencePiece's do; use the .model file it was made from");
    }
    for (const char* key : {"end_of_word_suffix", "continuing_subword_prefix", "dropout"}) {
      if (model.contains(key) && !model[key].is_null() && model[key] != "")
        fail("its model has {}, which is not known", key);
    }
    refuse_unless_empty(json, "normalizer");
    most_ = member(model, "vocab").size() + (json.contains("added_tokens") ? json["added_tokens"].size() : 0) + kGap;
    BytePairModel result;
    read_vocabulary(member(model, "vocab"), result);
    read_added(json, result);
    read_merges(member(model, "merges"), result);
    result.whole_words_first = model.contains("ignore_merges") && model["ignore_merges"] == true;
    if (json.contains("pre_tokenizer") && json["pre_tokenizer"].is_object()) add_step(json["pre_tokenizer"], result);
    if (!byte_level_) fail("it has no ByteLevel pre-tokenizer: its tokens are not made of bytes");
    if (json.contains("post_processor") && json["post_processor"].is_object()) {
      read_around(json["post_processor"], result);
    }
    return result;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UsageError(fmt::format("tokenizer: {}: {}", name_, fmt::format(format, std::forward<Args>(args)...)));
  }

  const Json& member(const Json& json, const char* key) const {
    if (!json.contains(key)) fail("it has no \"{}\"", key);
    return json[key];
  }
  static std::string text_of(const Json& json, const char* key, const char* otherwise) {
    return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : otherwise;
  }
  void refuse_unless_empty(const Json& json, const char* key) const {
    if (!json.contains(key) || json[key].is_null()) return;
    const Json& steps = json[key];
    if (text_of(steps, "type", "") == "Sequence" && steps.contains("normalizers") && steps["normalizers"].empty())
      return;
    fail("its {} {} is not known", key, text_of(steps, "type", "of no type"));
  }

  void put(BytePairModel& model, const Json& id, std::string token) const {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= most_) {
      fail("token \"{}\" has the id {}, which is none", token, id.is_primitive() ? id.dump() : id.type_name());
    }
    const auto index = id.get<std::size_t>();
    if (index >= model.tokens.size()) model.tokens.resize(index + 1);
    model.tokens[index] = std::move(token);
  }

  void read_vocabulary(const Json& vocabulary, BytePairModel& model) const {
    if (!vocabulary.is_object()) fail("its vocab is no object");
    for (const auto& [name, id] : vocabulary.items()) {
      // What is not made of bytes is an added token, which comes again with its own text.
      put(model, id, bytes_of_printable(name).value_or(name));
    }
  }

  void read_added(const Json& json, BytePairModel& model) const {
    if (!json.contains("added_tokens") || !json["added_tokens"].is_array()) return;
    for (const Json& added : json["added_tokens"]) {
      const std::string content = text_of(added, "content", "");
      if (content.empty() || !added.contains("id")) fail("an added token has no id or no content");
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
        if (added.contains(flag) && added[flag] == true) {
          fail("the added token {} takes what stands beside it ({}), which is not known", content, flag);
        }
      }
      put(model, added["id"], content);
      model.added.push_back({added["id"].get<TokenId>(), !added.contains("special") || added["special"] != false});
    }
  }

  void read_merges(const Json& merges, BytePairModel& model) const {
    if (!merges.is_array()) fail("its merges are no array");
    for (const Json& merge : merges) {
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const auto both = merge.get<std::string>();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos) fail("the merge \"{}\" is no pair", both);
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else {
        fail("a merge is of type {}, which is no pair", merge.type_name());
      }
      const auto a = bytes_of_printable(left), b = bytes_of_printable(right);
      if (!a || !b) fail("the merge of \"{}\" and \"{}\" is not of bytes", left, right);
      model.merges.emplace_back(*a, *b);
    }
  }

  void add_step(const Json& step, BytePairModel& model, int depth = 0) {
    if (depth > kDeepest) fail("its pre-tokenizer is nested too deep");
    const std::string type = text_of(step, "type", "");
    if (byte_level_) fail("its pre-tokenizer goes on after ByteLevel, with {}, which is not known", type);
    const auto flag = [&](const char* key, bool otherwise) {
      return step.contains(key) && step[key].is_boolean() ? step[key].get<bool>() : otherwise;
    };
    if (type == "Sequence") {
      for (const Json& inner : member(step, "pretokenizers")) add_step(inner, model, depth + 1);
    } else if (type == "ByteLevel") {
      if (flag("add_prefix_space", true)) fail("its ByteLevel puts a space in front of a text, which is not known");
      if (flag("use_regex", true)) {
        for (PreTokenizerStep& s : PreTokenizer::named("gpt-2")) model.pre_tokenizer.push_back(std::move(s));
      }
      byte_level_ = true;
    } else if (type == "Digits") {
      model.pre_tokenizer.emplace_back(SplitDigits{flag("individual_digits", false)});
    } else if (type == "Split") {
      SplitAtMatches split{text_of(member(step, "pattern"), "Regex", "")};
      if (split.pattern.empty()) {
        const std::string text = text_of(step["pattern"], "String", "");
        if (text.empty()) fail("a Split of its pre-tokenizer has no pattern");
        for (const char c : text) {
          const auto byte = static_cast<unsigned char>(c);
          if (byte < 0x80 && std::isalnum(byte) == 0) split.pattern += '\\';
          split.pattern += c;
        }
      }
      const std::string behavior = text_of(step, "behavior", "");
      using Match = SplitAtMatches::Match;
      if (behavior == "Isolated") {
        split.match = Match::Isolated;
      } else if (behavior == "Removed") {
        split.match = Match::Removed;
      } else if (behavior == "MergedWithPrevious") {
        split.match = Match::WithPrevious;
      } else if (behavior == "MergedWithNext") {
        split.match = Match::WithNext;
      } else {
        fail("a Split of its pre-tokenizer does {}, which is not known", behavior);
      }
      split.invert = flag("invert", false);
      model.pre_tokenizer.emplace_back(std::move(split));
    } else {
      fail("the pre-tokenizer {} is not known", type);
    }
  }

  /// What a template "<first> $A <last>" puts around a text.
  void read_around(const Json& processor, BytePairModel& model, int depth = 0) const {
    if (depth > kDeepest) fail("its post-processor is nested too deep");
    const std::string type = text_of(processor, "type", "");
    if (type == "ByteLevel") return;
    if (type == "Sequence" && processor.contains("processors")) {
      for (const Json& inner : processor["processors"]) read_around(inner, model, depth + 1);
      return;
    }
    if (type != "TemplateProcessing" || !processor.contains("single") || !processor["single"].is_array()) {
      fail("the post-processor {} is not known", type);
    }
    bool behind = false;
    for (const Json& part : processor["single"]) {
      if (part.is_object() && part.contains("Sequence")) {
        behind = true;
        continue;
      }
      const std::string name =
          part.is_object() && part.contains("SpecialToken") ? text_of(part["SpecialToken"], "id", "") : "";
      const auto known = std::ranges::find_if(model.added, [&](const BytePairModel::Added& a) {
        return model.tokens[static_cast<std::size_t>(a.id)] == name;
      });
      if (known == model.added.end()) fail("its post-processor adds \"{}\", which is no added token", name);
      (behind ? model.after : model.before).push_back(known->id);
    }
  }

  std::string_view text_, name_;
  std::size_t most_ = 0;  // ids
  bool byte_level_ = false;
};

}  // namespace

BytePairModel parse_tokenizer_json(std::string_view json, std::string_view name) {
  return TokenizerReader(json, name).read();
}

BytePairModel read_tokenizer_json(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UsageError(fmt::format("tokenizer: {} is a folder; name the tokenizer.json in it", path.string()));
  }
  const std::string text = [&] {
    try {
      return read_text(path);
    } catch (const std::system_error& error) {
      throw UsageError(fmt::format("tokenizer: {} cannot be read: {}", path.string(), error.code().message()));
    }
  }();
  return parse_tokenizer_json(text, path.string());
}

const TokenizerFormat& tokenizer_json_format() {
  static const TokenizerFormat format{
      .name = "a tokenizer.json",
      .recognizes = [](const std::filesystem::path& path) { return path.extension() == ".json"; },
      .open = [](const std::filesystem::path& path, const TokenizerOptions&) -> std::unique_ptr<const Tokenizer> {
        return std::make_unique<BytePairTokenizer>(read_tokenizer_json(path));
      }};
  return format;
}

}  // namespace snug::data
