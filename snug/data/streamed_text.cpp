#include "snug/data/streamed_text.h"

#include <algorithm>
#include <utility>

namespace snug::data {
namespace {

/// How much of a text ends with a whole character, and not with what stands for one that is not whole yet.
std::size_t whole_characters(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::size_t end = text.size();
  while (text.substr(0, end).ends_with(kReplacement)) end -= kReplacement.size();
  std::size_t begin = end;
  while (begin > 0 && end - begin < 3 && (static_cast<unsigned char>(text[begin - 1]) & 0xC0) == 0x80) --begin;
  if (begin == 0) return end;
  const auto lead = static_cast<unsigned char>(text[begin - 1]);
  const std::size_t wanted = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
  return end - begin < wanted ? begin - 1 : end;
}

bool is_more_than_blanks(std::string_view text) { return text.find_first_not_of(" \t\r\n") != std::string_view::npos; }

}  // namespace

StreamedText::StreamedText(const Tokenizer& tokenizer, std::vector<TokenId> before)
    : tokenizer_(&tokenizer), before_(std::move(before)) {}

std::string StreamedText::add(TokenId token) {
  pending_.push_back(token);
  const std::string text = decode_after(*tokenizer_, before_, pending_);
  const std::size_t whole = whole_characters(text);
  if (whole <= shown_) return {};
  std::string more = text.substr(shown_, whole - shown_);
  shown_ = whole;
  if (whole == text.size()) forget();
  return more;
}

std::string StreamedText::rest() {
  const std::string text = decode_after(*tokenizer_, before_, pending_);
  std::string more = text.size() > shown_ ? text.substr(shown_) : std::string();
  shown_ = std::max(shown_, text.size());
  return more;
}

void StreamedText::forget() {
  constexpr std::size_t kFew = 4;
  before_.insert(before_.end(), pending_.begin(), pending_.end());
  pending_.clear();
  shown_ = 0;
  if (before_.size() <= kFew) return;
  std::vector<TokenId> last(before_.end() - kFew, before_.end());
  // SentencePiece takes a blank off the first word: there has to be one in front.
  if (is_more_than_blanks(tokenizer_->decode(last))) before_ = std::move(last);
}

}  // namespace snug::data
