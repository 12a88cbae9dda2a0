#include "snug/data/sentence_piece.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <exception>
#include <limits>
#include <span>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/mapped_file.h"
#include "snug/data/sentence_piece_model.h"

namespace snug::data {
namespace {

constexpr std::size_t kLongestText = std::size_t{1} << 30U;

/// Calls the library, of which some parts report by status and some by exception.
template <class Call>
void checked(std::string_view what, const Call& call) {
  std::string reason;
  try {
    const sentencepiece::util::Status status = call();
    if (status.ok()) return;
    reason = status.ToString();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  for (char& c : reason) {
    if (c == '\n') c = ' ';
  }
  throw UsageError(fmt::format("tokenizer: {}: {}", what, reason));
}

std::optional<TokenId> unless_none(int id) { return id < 0 ? std::nullopt : std::optional<TokenId>(id); }

}  // namespace

SentencePieceTokenizer SentencePieceTokenizer::open(const std::filesystem::path& path,
                                                    const TokenizerOptions& options) {
  try {
    return {MappedFile(path).text(), path.string(), options};
  } catch (const std::system_error& error) {
    throw UsageError(fmt::format("tokenizer: {} cannot be read: {}; name a SentencePiece .model file", path.string(),
                                 error.code().message()));
  }
}

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view model, std::string_view name,
                                               const TokenizerOptions& options)
    : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()), options_(options) {
  check_sentence_piece_model({reinterpret_cast<const std::uint8_t*>(model.data()), model.size()}, name);
  checked(fmt::format("{} is no SentencePiece model that can be used", name),
          [&] { return processor_->LoadFromSerializedProto(model); });
  if ((options.begin && !begin_token()) || (options.end && !end_token())) {
    throw UsageError(
        fmt::format("tokenizer: {} has no token for the {} of a text, which is to be put around texts; leave it out",
                    name, options.begin && !begin_token() ? "beginning" : "end"));
  }
}

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceTokenizer&&) noexcept = default;
SentencePieceTokenizer& SentencePieceTokenizer::operator=(SentencePieceTokenizer&&) noexcept = default;
SentencePieceTokenizer::~SentencePieceTokenizer() = default;

std::vector<TokenId> SentencePieceTokenizer::encode(std::string_view text) const {
  if (text.size() > kLongestText) {
    throw UsageError(
        fmt::format("tokenizer: a text of {} bytes is more than the {} that SentencePiece takes at once; "
                    "encode it in pieces",
                    text.size(), kLongestText));
  }
  std::vector<int> ids;
  checked("encoding a text", [&] { return processor_->Encode(text, &ids); });
  std::vector<TokenId> result;
  result.reserve(ids.size() + 2);
  if (options_.begin) result.push_back(*begin_token());
  result.insert(result.end(), ids.begin(), ids.end());
  if (options_.end) result.push_back(*end_token());
  return result;
}

std::string SentencePieceTokenizer::decode(const std::vector<TokenId>& ids) const {
  std::vector<int> narrow;
  narrow.reserve(ids.size());
  for (const TokenId id : ids) {
    if (id < 0 || id >= size()) throw UsageError(fmt::format("tokenizer: token {} is none of {}", id, size()));
    narrow.push_back(static_cast<int>(id));
  }
  std::string text;
  checked("decoding tokens", [&] { return processor_->Decode(narrow, &text); });
  return text;
}

TokenId SentencePieceTokenizer::size() const { return processor_->GetPieceSize(); }

std::optional<TokenId> SentencePieceTokenizer::find(std::string_view token) const {
  // What is not found comes back as the unknown token.
  const int id = processor_->PieceToId(token);
  if (id < 0 || id >= size() || processor_->IdToPiece(id) != token) return std::nullopt;
  return id;
}

std::optional<TokenId> SentencePieceTokenizer::begin_token() const { return unless_none(processor_->bos_id()); }
std::optional<TokenId> SentencePieceTokenizer::end_token() const { return unless_none(processor_->eos_id()); }
std::optional<TokenId> SentencePieceTokenizer::unknown_token() const { return unless_none(processor_->unk_id()); }

const TokenizerFormat& sentence_piece_format() {
  static const TokenizerFormat format{
      .name = "a SentencePiece .model",
      .file = "tokenizer.model",
      .recognizes = [](const std::filesystem::path& path) { return path.extension() == ".model"; },
      .open = [](const std::filesystem::path& path,
                 const TokenizerOptions& options) -> std::unique_ptr<const Tokenizer> {
        return std::make_unique<SentencePieceTokenizer>(SentencePieceTokenizer::open(path, options));
      }};
  return format;
}

}  // namespace snug::data
