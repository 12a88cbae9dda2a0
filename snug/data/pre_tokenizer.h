#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace snug::data {

/// Cuts at every match of a regular expression (PCRE2's syntax, with Unicode's classes), as Hugging Face's Split does.
struct SplitAtMatches {
  std::string pattern;
  /// What becomes of a match: a piece of its own, part of the piece before it, of the one after it, or nothing.
  enum class Match : unsigned char { Isolated, WithPrevious, WithNext, Removed } match = Match::Isolated;
  bool invert = false;  ///< what lies between matches counts as a match, and the other way round
};
/// Cuts around digits: each by itself, or runs of them.
struct SplitDigits {
  bool individual = true;
};

using PreTokenizerStep = std::variant<SplitAtMatches, SplitDigits>;

/// Cuts a text into the pieces in which a tokenizer merges. Each step cuts the pieces of the one before.
class PreTokenizer {
 public:
  /// Throws UsageError naming the pattern that does not compile and the place in it.
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  /// The pieces in order; together they are the text, but for what a step removes. Bytes that are no UTF-8 match
  /// nothing, and stay in the piece around them. Safe from any number of threads.
  [[nodiscard]] std::vector<std::string_view> split(std::string_view text) const;

  /// The patterns that models name in place of spelling them out: "gpt-2", "llama-bpe" (Llama 3), "smollm", "qwen2".
  /// Throws UsageError for others, with the names there are.
  static std::vector<PreTokenizerStep> named(std::string_view name);

 private:
  class Pattern;
  struct Step {
    std::shared_ptr<const Pattern> pattern;
    SplitAtMatches::Match match;
    bool invert;
  };
  std::vector<Step> steps_;
};

}  // namespace snug::data
