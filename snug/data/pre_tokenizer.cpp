#include "snug/data/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

constexpr const char* kGpt2 = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Named {
  std::string_view name;
  std::vector<PreTokenizerStep> steps;
};

const std::vector<Named>& all_named() {
  static const std::vector<Named> all{
      {"gpt-2", {SplitAtMatches{kGpt2}}},
      {"llama-bpe", {SplitAtMatches{kLlama3}}},
      {"qwen2", {SplitAtMatches{kQwen2}}},
      {"smollm", {SplitDigits{}, SplitAtMatches{kGpt2}}},
  };
  return all;
}

}  // namespace

/// A compiled pattern. PCRE2 keeps what a match needs apart from it.
class PreTokenizer::Pattern {
 public:
  explicit Pattern(const std::string& text) {
    refuse_class_in_class(text);
    int error = 0;
    PCRE2_SIZE at = 0;
    // Text that is no UTF-8 is matched around.
    constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), kOptions, &error, &at, nullptr);
    if (code_ == nullptr) {
      std::array<PCRE2_UCHAR, 256> message{};
      pcre2_get_error_message(error, message.data(), message.size());
      throw UsageError(fmt::format("tokenizer: the pattern {} does not compile: {} at {}", text,
                                   reinterpret_cast<const char*>(message.data()), at));
    }
    pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE);  // where there is none it is interpreted
  }
  ~Pattern() { pcre2_code_free(code_); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  /// Calls with begin and end of each match; they may be the same place.
  template <class Call>
  void for_each_match(std::string_view text, const Call& call) const {
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
        pcre2_match_data_create_from_pattern(code_, nullptr), pcre2_match_data_free);
    const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const auto match = [&](PCRE2_SIZE from, std::uint32_t options) {
      return pcre2_match(code_, subject, text.size(), from, options, data.get(), nullptr);
    };
    PCRE2_SIZE from = 0;
    while (from < text.size()) {
      int found = match(from, 0);
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(from, PCRE2_NO_JIT);  // slower, and on the heap
      if (found == PCRE2_ERROR_NOMATCH) return;
      const PCRE2_SIZE* const place = pcre2_get_ovector_pointer(data.get());
      // A pattern may set back where its match begins.
      if (found < 0 || place[0] < from || place[1] < place[0]) {
        throw Error(fmt::format("tokenizer: a pattern gave up on the text at byte {} (PCRE2 {})", from, found));
      }
      call(place[0], place[1]);
      from = place[1];
      if (place[0] < place[1]) continue;
      do ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0U) == 0x80U);
    }
  }

 private:
  /// Which the expressions of other libraries have, and PCRE2 reads as something else.
  static void refuse_class_in_class(const std::string& text) {
    bool inside = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (!inside && text[i] == '[') {
        inside = true;
        if (text.compare(i + 1, 1, "^") == 0) ++i;
        if (text.compare(i + 1, 1, "]") == 0) ++i;
      } else if (inside && (text.compare(i, 2, "&&") == 0 || (text[i] == '[' && text.compare(i, 2, "[:") != 0))) {
        throw UsageError(
            fmt::format("tokenizer: the pattern {} has a class inside of a class, which is not known", text));
      } else if (inside && text[i] == ']' && text[i - 1] != ':') {
        inside = false;
      }
    }
  }

  pcre2_code* code_;
};

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& step : steps) {
    if (const auto* digits = std::get_if<SplitDigits>(&step)) {
      steps_.push_back({std::make_shared<Pattern>(digits->individual ? R"(\p{N})" : R"(\p{N}+)"),
                        SplitAtMatches::Match::Isolated, false});
    } else {
      const auto& split = std::get<SplitAtMatches>(step);
      steps_.push_back({std::make_shared<Pattern>(split.pattern), split.match, split.invert});
    }
  }
}

std::vector<PreTokenizerStep> PreTokenizer::named(std::string_view name) {
  const auto found = std::ranges::find(all_named(), name, &Named::name);
  if (found != all_named().end()) return found->steps;
  std::vector<std::string_view> names;
  for (const Named& n : all_named()) names.push_back(n.name);
  throw UsageError(fmt::format("tokenizer: no rules called \"{}\" for cutting text into words; there are {}", name,
                               fmt::join(names, ", ")));
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  struct Piece {
    std::string_view text;
    bool match;
  };
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const Step& step : steps_) {
    std::vector<std::string_view> next;
    for (const std::string_view whole : pieces) {
      std::vector<Piece> parts;
      std::size_t reached = 0;
      const auto add = [&](std::size_t end, bool match) {
        if (end > reached) parts.push_back({whole.substr(reached, end - reached), match != step.invert});
        reached = end;
      };
      step.pattern->for_each_match(whole, [&](std::size_t begin, std::size_t end) {
        add(begin, false);
        add(end, true);
      });
      add(whole.size(), false);
      // A piece that a match is to be part of is extended: they lie side by side.
      const auto extended = [](std::string_view a, std::string_view b) {
        return std::string_view(a.data(), a.size() + b.size());
      };
      bool match_before = false;
      const std::size_t first = next.size();
      for (const Piece& part : parts) {
        using Match = SplitAtMatches::Match;
        if (part.match && step.match == Match::Removed) continue;
        const bool joins = next.size() > first && ((part.match && !match_before && step.match == Match::WithPrevious) ||
                                                   (!part.match && match_before && step.match == Match::WithNext));
        if (joins) {
          next.back() = extended(next.back(), part.text);
        } else {
          next.push_back(part.text);
        }
        match_before = part.match;
      }
    }
    pieces = std::move(next);
  }
  return pieces;
}

}  // namespace snug::data
