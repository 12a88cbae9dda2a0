#include "snug/data/byte_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <queue>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

constexpr int kBytes = 256;

/// The character that stands for each byte: itself where it can be printed, else the next of those from 256 on.
const std::array<char32_t, kBytes>& printable() {
  static const std::array<char32_t, kBytes> all = [] {
    std::array<char32_t, kBytes> a{};
    char32_t next = kBytes;
    for (int b = 0; b < kBytes; ++b) {
      const bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      a[static_cast<std::size_t>(b)] = itself ? static_cast<char32_t>(b) : next++;
    }
    return a;
  }();
  return all;
}

/// The byte for a character; -1 when it stands for none.
int byte_of(char32_t character) {
  const auto* const found = std::ranges::find(printable(), character);
  return found == printable().end() ? -1 : static_cast<int>(found - printable().begin());
}

/// A neighbouring pair of parts that can be merged.
struct Candidate {
  std::uint32_t rank;
  std::size_t left;
  TokenId first, second, result;  // as it was: parts that have changed since are passed over
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
};

}  // namespace

std::optional<std::string> bytes_of_printable(std::string_view name) {
  std::string bytes;
  for (std::size_t i = 0; i < name.size();) {
    // All of them are below U+0800: one or two bytes of UTF-8.
    const auto lead = static_cast<unsigned char>(name[i]);
    char32_t character = lead;
    std::size_t length = 1;
    if (lead >= 0xC0 && lead < 0xE0 && i + 1 < name.size()) {
      character = (static_cast<char32_t>(lead) & 0x1FU) << 6U | (static_cast<unsigned char>(name[i + 1]) & 0x3FU);
      length = 2;
    } else if (lead >= 0x80) {
      return std::nullopt;
    }
    const int byte = byte_of(character);
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    i += length;
  }
  return bytes;
}

BytePairTokenizer::BytePairTokenizer(BytePairModel model)
    : tokens_(std::move(model.tokens)),
      is_special_(tokens_.size(), false),
      pre_tokenizer_(model.pre_tokenizer),
      whole_words_first_(model.whole_words_first),
      before_(std::move(model.before)),
      after_(std::move(model.after)),
      end_(model.end) {
  const auto check = [&](TokenId id) {
    if (id < 0 || id >= size()) throw UsageError(fmt::format("tokenizer: token {} is none of {}", id, size()));
  };
  for (const BytePairModel::Added& added : model.added) {
    check(added.id);
    const std::string& token = tokens_[static_cast<std::size_t>(added.id)];
    is_special_[static_cast<std::size_t>(added.id)] = added.special;
    if (token.empty()) continue;
    added_.emplace(token, added.id);
    begins_added_[static_cast<unsigned char>(token.front())] = true;
  }
  std::ranges::for_each(before_, check);
  std::ranges::for_each(after_, check);
  for (TokenId id = 0; id < size(); ++id) ids_.emplace(tokens_[static_cast<std::size_t>(id)], id);
  for (int b = 0; b < kBytes; ++b) {
    const char byte = static_cast<char>(b);
    const std::optional<TokenId> token = find({&byte, 1});
    byte_tokens_.push_back(token.value_or(-1));
  }
  std::uint32_t rank = 0;
  for (const auto& [left, right] : model.merges) {
    const std::optional<TokenId> a = find(left), b = find(right), both = find(left + right);
    if (!a || !b || !both) {
      throw UsageError(
          fmt::format("tokenizer: merge {} makes a token of \"{}\" and \"{}\", of which one or the result is "
                      "not in the vocabulary; do the two belong together?",
                      rank, left, right));
    }
    merges_.emplace(Pair{*a, *b}, Merge{rank++, *both});
  }
}

std::optional<TokenId> BytePairTokenizer::find(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

void BytePairTokenizer::encode_word(std::string_view word, std::vector<TokenId>& ids) const {
  if (whole_words_first_) {
    if (const std::optional<TokenId> whole = find(word)) return ids.push_back(*whole);
  }
  struct Part {
    TokenId token;  // -1: merged into the one before
    std::size_t before, after;
  };
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::vector<Part> parts;
  for (const char c : word) {
    const TokenId token = byte_tokens_[static_cast<unsigned char>(c)];
    if (token < 0) {
      throw UsageError(fmt::format("tokenizer: the vocabulary has no token for byte {}, which the text has",
                                   static_cast<unsigned char>(c)));
    }
    parts.push_back({token, parts.size() - 1, parts.size() + 1});  // the first one's before wraps to kNone
  }
  if (!parts.empty()) parts.back().after = kNone;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](std::size_t left) {
    if (left == kNone || parts[left].after == kNone) return;
    const TokenId first = parts[left].token, second = parts[parts[left].after].token;
    const auto merge = merges_.find({first, second});
    if (merge != merges_.end()) candidates.push({merge->second.rank, left, first, second, merge->second.result});
  };
  for (std::size_t i = 0; i < parts.size(); ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate c = candidates.top();
    candidates.pop();
    Part& left = parts[c.left];
    if (left.token != c.first || left.after == kNone || parts[left.after].token != c.second) continue;
    Part& right = parts[left.after];
    left.token = c.result;
    right.token = -1;
    left.after = right.after;
    if (left.after != kNone) parts[left.after].before = c.left;
    consider(left.before);
    consider(c.left);
  }
  for (std::size_t i = 0; i < parts.size(); i = parts[i].after) {
    ids.push_back(parts[i].token);
    if (parts[i].after == kNone) break;
  }
}

void BytePairTokenizer::encode_words(std::string_view text, std::vector<TokenId>& ids) const {
  for (const std::string_view word : pre_tokenizer_.split(text)) encode_word(word, ids);
}

std::vector<TokenId> BytePairTokenizer::encode(std::string_view text, Specials specials) const {
  std::vector<TokenId> ids = before_;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (!begins_added_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    // Of all added tokens that begin here, the longest.
    const std::string_view rest = text.substr(i);
    const auto found = std::ranges::find_if(added_, [&](const auto& a) {
      return rest.starts_with(a.first) &&
             (specials == Specials::Meant || !is_special_[static_cast<std::size_t>(a.second)]);
    });
    if (found == added_.end()) {
      ++i;
      continue;
    }
    encode_words(text.substr(begin, i - begin), ids);
    ids.push_back(found->second);
    i += found->first.size();
    begin = i;
  }
  encode_words(text.substr(begin), ids);
  ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::string BytePairTokenizer::decode(const std::vector<TokenId>& ids, Specials specials) const {
  std::string text;
  for (const TokenId id : ids) {
    if (id < 0 || id >= size()) throw UsageError(fmt::format("tokenizer: token {} is none of {}", id, size()));
    if (specials == Specials::Meant || !is_special_[static_cast<std::size_t>(id)])
      text += tokens_[static_cast<std::size_t>(id)];
  }
  return text;
}

}  // namespace snug::data
