#include "snug/data/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/base/shortened.h"
#include "snug/base/text_file.h"
#include "snug/data/tokenizer_format.h"

namespace snug::data {
namespace {

constexpr double kGap = 65'536;  // ids beyond the number of tokens
constexpr int kDeepest = 8;      // sequences in sequences

constexpr std::array<std::pair<std::string_view, SplitAtMatches::Match>, 4> kMatches{
    {{"Isolated", SplitAtMatches::Match::Isolated},
     {"Removed", SplitAtMatches::Match::Removed},
     {"MergedWithPrevious", SplitAtMatches::Match::WithPrevious},
     {"MergedWithNext", SplitAtMatches::Match::WithNext}}};

enum class StepType : unsigned char { Sequence, ByteLevel, Digits, Split };
constexpr std::array<std::pair<std::string_view, StepType>, 4> kStepTypes{{{"Sequence", StepType::Sequence},
                                                                           {"ByteLevel", StepType::ByteLevel},
                                                                           {"Digits", StepType::Digits},
                                                                           {"Split", StepType::Split}}};

enum class ProcessorType : unsigned char { Sequence, ByteLevel, Template };
constexpr std::array<std::pair<std::string_view, ProcessorType>, 3> kProcessorTypes{
    {{"Sequence", ProcessorType::Sequence},
     {"ByteLevel", ProcessorType::ByteLevel},
     {"TemplateProcessing", ProcessorType::Template}}};

class TokenizerReader {
 public:
  BytePairModel read(const JsonField& json) {
    const JsonField model = json.at("model");
    if (const auto type = model.find("type"); type && !type->is("BPE")) type->refuse("\"BPE\", of bytes");
    if (model.optional("byte_fallback", false)) {
      json.fail("its model falls back to bytes, as SentencePiece's do; use the .model file it was made from");
    }
    for (const char* key : {"end_of_word_suffix", "continuing_subword_prefix", "dropout"}) {
      if (const auto field = model.find(key); field && !field->is("")) field->refuse("null, as none is known");
    }
    refuse_unless_empty(json, "normalizer");
    const auto added = json.find("added_tokens");
    ids_ = {.low = 0,
            .high = static_cast<double>(model.at("vocab").size() + (added ? added->size() : 0)) + kGap,
            .high_excluded = true};
    const JsonField vocabulary = model.at("vocab");
    read_vocabulary(vocabulary);
    if (added) read_added(*added, vocabulary);
    read_merges(model.at("merges"));
    model_.whole_words_first = model.optional("ignore_merges", false);
    if (const auto step = json.find("pre_tokenizer")) add_step(*step);
    if (!byte_level_) json.fail("it has no ByteLevel pre-tokenizer: its tokens are not made of bytes");
    if (const auto processor = json.find("post_processor")) read_around(*processor);
    return std::move(model_);
  }

 private:
  static void refuse_unless_empty(const JsonField& json, const char* key) {
    const auto steps = json.find(key);
    if (!steps) return;
    const auto type = steps->find("type"), all = steps->find("normalizers");
    if (!type || !type->is("Sequence") || !all || all->size() > 0) steps->refuse("null, as none is known");
  }

  /// `name`: the token as the file writes it. An added token may come again with the id that it has.
  void put(const JsonField& id, std::string token, std::string_view name) {
    const auto index = id.as<std::size_t>(ids_);
    if (index >= model_.tokens.size()) {
      model_.tokens.resize(index + 1);
      names_.resize(index + 1);
    }
    model_.tokens[index] = std::move(token);
    names_[index] = name;
  }

  void read_vocabulary(const JsonField& vocabulary) {
    for (const auto& [name, id] : vocabulary.members()) {
      // What is not made of bytes is an added token, which comes again with its own text.
      put(id, bytes_of_printable(name).value_or(std::string(name)), name);
    }
  }

  void read_added(const JsonField& all, const JsonField& vocabulary) {
    std::unordered_map<std::string, TokenId> before;
    for (const JsonField& added : all.items()) {
      const JsonField content = added.at("content");
      if (content.is("")) content.refuse("the token as it is written");
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
        if (added.optional(flag, false)) added.at(flag).refuse("false, as no token can take what stands beside it");
      }
      const JsonField id = added.at("id");
      const std::string name = content.as<std::string>();
      const auto index = id.as<std::size_t>(ids_);
      if (const auto own = vocabulary.find(name); own && own->as<std::size_t>(ids_) != index) {
        id.refuse(fmt::format("{}, which {} has in its vocabulary", own->shown(), content.shown()));
      }
      if (const auto [same, is_new] = before.try_emplace(name, id.as<TokenId>());
          !is_new && same->second != id.as<TokenId>())
        id.refuse(fmt::format("{}, which {} has before", same->second, content.shown()));
      if (index < names_.size() && !names_[index].empty() && names_[index] != name)
        id.refuse(fmt::format("one that no other token has; \"{}\" has it", shortened(names_[index], 40)));
      put(id, name, name);
      model_.added.push_back({id.as<TokenId>(), added.optional("special", true)});
    }
  }

  void read_merges(const JsonField& merges) {
    for (const JsonField& merge : merges.items()) {
      std::string left, right;
      if (merge.is_array()) {
        if (merge.size() != 2) merge.refuse("a pair of tokens");
        left = merge.at(0).as<std::string>();
        right = merge.at(1).as<std::string>();
      } else {
        const auto both = value_as<std::string>(merge.value());
        const std::size_t space = both ? both->find(' ') : std::string::npos;
        if (space == std::string::npos) merge.refuse("a pair of tokens");
        left = both->substr(0, space);
        right = both->substr(space + 1);
      }
      const auto a = bytes_of_printable(left), b = bytes_of_printable(right);
      if (!a || !b) merge.refuse("a pair of tokens of bytes");
      model_.merges.emplace_back(*a, *b);
    }
  }

  static SplitAtMatches split_of(const JsonField& step) {
    const JsonField pattern = step.at("pattern");
    SplitAtMatches split{pattern.optional<std::string>("Regex", "")};
    if (split.pattern.empty()) {
      for (const char c : pattern.optional<std::string>("String", "")) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x80 && std::isalnum(byte) == 0) split.pattern += '\\';
        split.pattern += c;
      }
    }
    if (split.pattern.empty()) pattern.refuse("a Regex or a String");
    split.match = step.at("behavior").one_of(kMatches);
    split.invert = step.optional("invert", false);
    return split;
  }

  void add_step(const JsonField& step, int depth = 0) {
    if (depth > kDeepest) step.fail("its pre-tokenizer is nested too deep");
    const JsonField type = step.at("type");
    if (byte_level_) step.fail(fmt::format("its pre-tokenizer goes on after ByteLevel, with {}", type.shown()));
    switch (type.one_of(kStepTypes)) {
      case StepType::Sequence:
        for (const JsonField& inner : step.at("pretokenizers").items()) add_step(inner, depth + 1);
        return;
      case StepType::ByteLevel:
        if (step.optional("add_prefix_space", true)) {
          step.fail("its ByteLevel puts a space in front of a text (add_prefix_space), which is not known");
        }
        if (step.optional("use_regex", true)) {
          for (PreTokenizerStep& s : PreTokenizer::named("gpt-2")) model_.pre_tokenizer.push_back(std::move(s));
        }
        byte_level_ = true;
        return;
      case StepType::Digits:
        model_.pre_tokenizer.emplace_back(SplitDigits{step.optional("individual_digits", false)});
        return;
      case StepType::Split:
        model_.pre_tokenizer.emplace_back(split_of(step));
        return;
    }
  }

  /// The ids that a template names for a token are what `tokenizers` puts there, whatever the token's own.
  static void expect_ids(const JsonField& processor, const std::string& name, TokenId id) {
    const auto all = processor.find("special_tokens");
    const auto token = all ? all->find(name) : std::nullopt;
    const auto ids = token ? token->find("ids") : std::nullopt;
    if (ids && ids->as<std::vector<TokenId>>() != std::vector{id})
      ids->refuse(fmt::format("[{}], as the added token \"{}\" has it", id, name));
  }

  /// What a template "<first> $A <last>" puts around a text.
  void read_around(const JsonField& processor, int depth = 0) {
    if (depth > kDeepest) processor.fail("its post-processor is nested too deep");
    switch (processor.at("type").one_of(kProcessorTypes)) {
      case ProcessorType::Sequence:
        for (const JsonField& inner : processor.at("processors").items()) read_around(inner, depth + 1);
        return;
      case ProcessorType::ByteLevel:
        return;
      case ProcessorType::Template:
        break;
    }
    bool behind = false;
    for (const JsonField& part : processor.at("single").items()) {
      if (part.find("Sequence")) {
        behind = true;
        continue;
      }
      const JsonField name = part.at("SpecialToken").at("id");
      const auto known = std::ranges::find_if(model_.added, [&](const BytePairModel::Added& a) {
        return name.is(model_.tokens[static_cast<std::size_t>(a.id)]);
      });
      if (known == model_.added.end()) name.refuse("one of its added_tokens");
      expect_ids(processor, name.as<std::string>(), known->id);
      (behind ? model_.after : model_.before).push_back(known->id);
    }
  }

  BytePairModel model_;
  std::vector<std::string> names_;  // by id, as the file writes them
  Range ids_{};
  bool byte_level_ = false;
};

}  // namespace

BytePairModel parse_tokenizer_json(std::string_view json, std::string_view name) {
  const JsonFile file(json, {.name = fmt::format("tokenizer: {}", name),
                             .cure = "use a tokenizer.json of byte-level BPE as Hugging Face's tokenizers writes it"});
  return TokenizerReader().read(file.root());
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
      .file = "tokenizer.json",
      .recognizes = [](const std::filesystem::path& path) { return path.extension() == ".json"; },
      .open = [](const std::filesystem::path& path, const TokenizerOptions&) -> std::unique_ptr<const Tokenizer> {
        return std::make_unique<BytePairTokenizer>(read_tokenizer_json(path));
      }};
  return format;
}

}  // namespace snug::data
