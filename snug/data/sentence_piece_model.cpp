#include "snug/data/sentence_piece_model.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

using Span = std::span<const std::uint8_t>;

/// A field of a protobuf message: its number and, by kind, the bytes or the four bytes of it. Others are passed over.
struct Field {
  enum class Kind : std::uint8_t { Number, Bytes, Fixed32, Fixed64 } kind;
  std::uint64_t number;
  Span bytes;
};

class Checker {
 public:
  Checker(Span model, std::string_view name) : model_(model), name_(name) {}

  void check() const {
    constexpr std::uint64_t kPieces = 1, kNormalizer = 3, kDenormalizer = 5;
    for_each_field(model_, [&](const Field& field) {
      if (field.kind != Field::Kind::Bytes) return;
      if (field.number == kPieces) check_piece(field.bytes);
      if (field.number == kNormalizer || field.number == kDenormalizer) check_normalizer(field.bytes);
    });
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(const std::uint8_t* at, fmt::format_string<Args...> format, Args&&... args) const {
    throw UsageError(fmt::format("tokenizer: {}: byte {}: {}; is it a SentencePiece model, and whole?", name_,
                                 at - model_.data(), fmt::format(format, std::forward<Args>(args)...)));
  }

  std::uint64_t varint(Span& rest) const {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest.empty()) fail(rest.data(), "it ends inside of a number");
      const std::uint8_t byte = rest.front();
      rest = rest.subspan(1);
      value |= static_cast<std::uint64_t>(byte & 0x7FU) << shift;
      if (byte < 0x80) return value;
    }
    fail(rest.data(), "a number has more than 64 bits");
  }

  template <class Call>
  void for_each_field(Span message, const Call& call) const {
    while (!message.empty()) {
      const std::uint8_t* const at = message.data();
      const std::uint64_t tag = varint(message);
      // Readers of protobuf differ on longer ones: some cut them off to 32 bits, which makes them another field.
      if (tag > 0xFFFFFFFFU || message.data() - at > 5 || tag >> 3U == 0) fail(at, "no field begins with {}", tag);
      Field field{Field::Kind::Number, tag >> 3U, {}};
      std::uint64_t length = 0;
      switch (tag & 7U) {
        case 0:
          varint(message);
          break;
        case 1:
          field.kind = Field::Kind::Fixed64, length = 8;
          break;
        case 2:
          field.kind = Field::Kind::Bytes, length = varint(message);
          break;
        case 5:
          field.kind = Field::Kind::Fixed32, length = 4;
          break;
        default:
          fail(at, "no field begins with {}", tag);
      }
      if (length > message.size()) fail(at, "a field of {} bytes, and {} are left", length, message.size());
      field.bytes = message.first(length);
      message = message.subspan(length);
      call(field);
    }
  }

  void check_piece(Span piece) const {
    constexpr std::uint64_t kScore = 2;
    for_each_field(piece, [&](const Field& field) {
      if (field.number != kScore || field.kind != Field::Kind::Fixed32) return;
      float score = 0;
      std::memcpy(&score, field.bytes.data(), sizeof(score));
      if (!std::isfinite(score)) fail(field.bytes.data(), "the score {} is no number", score);
    });
  }

  void check_normalizer(Span normalizer) const {
    constexpr std::uint64_t kRules = 2;
    for_each_field(normalizer, [&](const Field& field) {
      if (field.number == kRules && field.kind == Field::Kind::Bytes) check_rules(field.bytes);
    });
  }

  /// The length of a trie in bytes, the trie, and the texts that it leads to, each with a 0 behind it.
  void check_rules(Span rules) const {
    if (rules.empty()) return;
    std::uint32_t trie_bytes = 0;
    constexpr std::size_t kBlock = 256 * sizeof(std::uint32_t);  // of the trie: one place for each next byte
    if (rules.size() < sizeof(trie_bytes)) fail(rules.data(), "its normalization rules are {} bytes", rules.size());
    std::memcpy(&trie_bytes, rules.data(), sizeof(trie_bytes));
    const Span rest = rules.subspan(sizeof(trie_bytes));
    if (trie_bytes == 0 || trie_bytes % kBlock != 0 || trie_bytes >= rest.size()) {
      fail(rules.data(), "its normalization rules have a trie of {} bytes in {}, and it must be a multiple of {}",
           trie_bytes, rest.size(), kBlock);
    }
    const Span texts = rest.subspan(trie_bytes);
    if (texts.back() != 0) fail(&texts.back(), "the last text of its normalization rules has no end");
    const std::size_t units = trie_bytes / sizeof(std::uint32_t);
    const auto unit = [&](std::size_t i) {
      std::uint32_t value = 0;
      std::memcpy(&value, rest.data() + i * sizeof(value), sizeof(value));
      return value;
    };
    for (std::size_t i = 0; i < units; ++i) {
      constexpr std::uint32_t kIsValue = 1U << 31U, kHasValue = 1U << 8U, kIsFar = 1U << 9U;
      const std::uint32_t value = unit(i);
      if (i > 0 && (value & kIsValue) != 0) continue;
      // Where its children are, before the next byte is added to the lowest bits: the block is what counts.
      const std::size_t children = i ^ (static_cast<std::size_t>(value >> 10U) << ((value & kIsFar) != 0 ? 8U : 0U));
      if (children >= units) {
        fail(rest.data() + i * sizeof(value), "its normalization rules lead to place {} of {}", children, units);
      }
      if ((value & kHasValue) != 0 && (unit(children) & ~kIsValue) >= texts.size()) {
        fail(rest.data() + i * sizeof(value), "its normalization rules lead to byte {} of {} of their texts",
             unit(children) & ~kIsValue, texts.size());
      }
    }
  }

  Span model_;
  std::string_view name_;
};

}  // namespace

void check_sentence_piece_model(std::span<const std::uint8_t> model, std::string_view name) {
  Checker(model, name).check();
}

}  // namespace snug::data
