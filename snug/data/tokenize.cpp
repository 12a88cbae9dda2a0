#include "snug/data/tokenize.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <string>
#include <thread>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"

namespace snug::data {
namespace {

/// A part of a document.
struct Piece {
  Bytes begin, end;
  bool first, last;  // of its document
};

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Where a piece that holds the first bytes of `text`, which goes on behind it, had best end.
std::size_t good_end(std::string_view text) {
  // A run of blanks is often one token with the line's end in it, or ends in another way when nothing follows.
  for (std::size_t i = text.size() - 1; i > 1; --i) {
    if (text[i - 1] == '\n' && !is_blank(text[i]) && !is_blank(text[i - 2])) return i;
  }
  // So in a text with "\r\n" alone, or of paragraphs. A blank between two words begins a token in all vocabularies.
  for (std::size_t i = text.size() - 2; i > 0 && i < text.size(); --i) {
    if (text[i] == ' ' && is_letter(text[i - 1]) && is_letter(text[i + 1])) return i;
  }
  for (std::size_t i = text.size() - 1; i > 0; --i) {
    if (text[i - 1] == '\n' && !is_blank(text[i])) return i;
  }
  const std::size_t line = text.substr(0, text.size() - 1).rfind('\n');
  if (line != std::string_view::npos) return line + 1;
  // UTF-8 goes on for three bytes at most; what does for longer is none.
  constexpr std::size_t kLongest = 4;
  for (std::size_t i = text.size() - 1; i > 0 && i + kLongest >= text.size(); --i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U) return i;
  }
  return text.size() - 1;
}

std::string read(const TextCorpus& text, Bytes begin, Bytes end) {
  std::string bytes(static_cast<std::size_t>(end - begin), '\0');
  text.copy(begin, {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
  return bytes;
}

std::vector<Piece> pieces_of(const TextCorpus& text, Bytes longest) {
  std::vector<Piece> pieces;
  const auto starts = text.starts();
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const Bytes end = i + 1 < starts.size() ? starts[i + 1] : text.size();
    for (Bytes begin = starts[i]; begin < end;) {
      Bytes reached = end;
      // One byte more, to see what follows.
      if (end - begin > longest) {
        reached = begin + static_cast<Bytes>(good_end(read(text, begin, begin + longest + 1)));
      }
      pieces.push_back({begin, reached, begin == starts[i], reached == end});
      begin = reached;
    }
  }
  return pieces;
}

at::Tensor encoded(const TextCorpus& text, const Piece& piece, const EncodePiece& encode,
                   const TokenizeOptions& options) {
  std::vector<TokenId> ids = encode(read(text, piece.begin, piece.end));
  if (piece.first && options.before) ids.insert(ids.begin(), *options.before);
  const bool ended = options.after && !ids.empty() && ids.back() == *options.after;
  if (piece.last && options.after && !ended) ids.push_back(*options.after);
  at::Tensor narrow = at::empty({static_cast<std::int64_t>(ids.size())}, at::kInt);
  auto* out = narrow.mutable_data_ptr<std::int32_t>();
  for (const TokenId id : ids) {
    if (!std::in_range<std::int32_t>(id)) {
      throw UsageError(fmt::format("tokenizing: id {} does not fit into 32 bits; use a smaller vocabulary", id));
    }
    *out++ = static_cast<std::int32_t>(id);
  }
  return narrow;
}

}  // namespace

TokenCorpus tokenize(const TextCorpus& text, const EncodePiece& encode, const TokenizeOptions& options) {
  if (options.threads < 1 || options.piece < 1 || options.piece == std::numeric_limits<Bytes>::max()) {
    throw UsageError(fmt::format("tokenizing: threads = {} and piece = {} must both be at least 1 and not endless",
                                 options.threads, options.piece));
  }
  const memory::TagScope tag(memory::Tag::Staging);
  const std::vector<Piece> pieces = pieces_of(text, options.piece);
  std::vector<at::Tensor> parts(pieces.size());
  std::vector<std::exception_ptr> failures(pieces.size());
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    const memory::TagScope staging(memory::Tag::Staging);
    // Pieces are begun in order: all in front of one that fails have been begun, and are finished.
    for (std::size_t i = 0; !failed && (i = next++) < pieces.size();) {
      try {
        parts[i] = encoded(text, pieces[i], encode, options);
      } catch (...) {
        failures[i] = std::current_exception();
        failed = true;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 1; i < options.threads; ++i) threads.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  std::int64_t count = 0;
  for (const at::Tensor& part : parts) count += part.numel();
  at::Tensor ids = at::empty({count}, at::kInt);
  std::vector<std::int64_t> documents;
  auto* out = ids.mutable_data_ptr<std::int32_t>();
  const auto* const begin = out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (pieces[i].first) documents.push_back(out - begin);
    const at::Tensor part = std::exchange(parts[i], {});
    out = std::copy_n(part.const_data_ptr<std::int32_t>(), part.numel(), out);
  }
  return {std::move(ids), std::move(documents)};
}

}  // namespace snug::data
