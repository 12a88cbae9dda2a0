#include "snug/data/token_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

static_assert(std::is_same_v<Bytes, std::int64_t>, "starts of files are starts of documents");

constexpr std::int64_t kPart = 65'536;  // ids read at a time when all are

template <class... Args>
[[noreturn]] void refuse_token_corpus(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format("token corpus: {}", fmt::format(format, std::forward<Args>(args)...)));
}

}  // namespace

TokenCorpus::TokenCorpus(TextCorpus text) : source_(std::move(text)) {}

TokenCorpus::TokenCorpus(TokenFile file) : source_(std::move(file)) {}

TokenCorpus::TokenCorpus(at::Tensor ids, std::vector<std::int64_t> documents)
    : source_(InMemory{std::move(ids), std::move(documents)}) {
  const auto& [tensor, starts] = std::get<InMemory>(source_);
  if (!tensor.defined() || tensor.dim() != 1 || tensor.scalar_type() != at::kInt || !tensor.device().is_cpu() ||
      !tensor.is_contiguous()) {
    refuse_token_corpus("ids in memory must be a contiguous one-dimensional int32 tensor on the CPU, and these are {}",
                        !tensor.defined()
                            ? "undefined"
                            : fmt::format("{} of {} dimensions on {}", c10::toString(tensor.scalar_type()),
                                          tensor.dim(), tensor.device().str()));
  }
  if (tensor.numel() == 0) refuse_token_corpus("there are no ids; give at least one");
  if (starts.empty() || starts.front() != 0) refuse_token_corpus("the first document must begin with token 0");
  for (std::size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] < starts[i - 1] || starts[i] > tensor.numel()) {
      refuse_token_corpus(
          "document {} begins with token {}, after one that begins with {}, of {} tokens; starts must not fall", i,
          starts[i], starts[i - 1], tensor.numel());
    }
  }
}

std::int64_t TokenCorpus::size() const {
  if (const auto* text = std::get_if<TextCorpus>(&source_)) return text->size();
  if (const auto* file = std::get_if<TokenFile>(&source_)) return file->size();
  return std::get<InMemory>(source_).ids.numel();
}

std::span<const std::int64_t> TokenCorpus::documents() const {
  if (const auto* text = std::get_if<TextCorpus>(&source_)) return text->starts();
  if (const auto* file = std::get_if<TokenFile>(&source_)) return file->documents();
  return std::get<InMemory>(source_).documents;
}

void TokenCorpus::copy(std::int64_t offset, std::span<std::int64_t> out) const {
  if (const auto* file = std::get_if<TokenFile>(&source_)) return file->copy(offset, out);
  if (const auto* text = std::get_if<TextCorpus>(&source_)) {
    std::vector<std::uint8_t> bytes(out.size());
    text->copy(offset, bytes);
    std::ranges::copy(bytes, out.begin());
    return;
  }
  if (offset < 0 || offset > size() || std::cmp_greater(out.size(), size() - offset)) {
    throw Error(fmt::format("token corpus: {} tokens from number {} on are not inside the {} there are", out.size(),
                            offset, size()));
  }
  const auto* ids = std::get<InMemory>(source_).ids.const_data_ptr<std::int32_t>() + offset;
  std::copy(ids, ids + out.size(), out.begin());
}

template <class Call>
void TokenCorpus::for_each_part(const Call& call) const {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(std::min(kPart, size())));
  for (std::int64_t offset = 0; offset < size(); offset += kPart) {
    const std::span<std::int64_t> part =
        std::span(ids).first(static_cast<std::size_t>(std::min(kPart, size() - offset)));
    copy(offset, part);
    call(offset, part);
  }
}

std::int64_t TokenCorpus::highest_id() const {
  std::int64_t highest = std::numeric_limits<std::int64_t>::min();
  for_each_part([&](std::int64_t /*offset*/, std::span<const std::int64_t> ids) {
    highest = std::max(highest, std::ranges::max(ids));
  });
  return highest;
}

void TokenCorpus::check_vocabulary(std::int64_t vocabulary) const {
  const auto* const file = std::get_if<TokenFile>(&source_);
  const TokenType type = std::holds_alternative<TextCorpus>(source_) ? TokenType::U8
                         : file != nullptr                           ? file->type()
                                                                     : TokenType::I32;
  if (!can_leave(type, vocabulary)) return;
  for_each_part([&](std::int64_t offset, std::span<const std::int64_t> ids) {
    const auto wrong = std::ranges::find_if(ids, [&](std::int64_t id) { return id < 0 || id >= vocabulary; });
    if (wrong == ids.end()) return;
    refuse_token_corpus(
        "id {} at token {}{} is none of a vocabulary of {}: a tokenizer that does not match the vocabulary; use the "
        "model's own, or a model with more ids",
        *wrong, offset + (wrong - ids.begin()), file == nullptr ? "" : " of " + file->name(), vocabulary);
  });
}

std::string_view TokenCorpus::unit() const { return std::holds_alternative<TextCorpus>(source_) ? "bytes" : "tokens"; }

}  // namespace snug::data
