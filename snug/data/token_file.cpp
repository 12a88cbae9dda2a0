#include "snug/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/data/megatron_index.h"

namespace snug::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLlmcHeader = 256 * sizeof(std::int32_t);
struct LlmcKind {
  std::int32_t magic, version;
  TokenType type;
};
constexpr LlmcKind kLlmcKinds[] = {{20240520, 1, TokenType::U16}, {20240801, 7, TokenType::U32}};

template <class... Args>
[[noreturn]] void refuse_token_file(std::string_view name, fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format("token file: {}: {}", name, fmt::format(format, std::forward<Args>(args)...)));
}

MappedFile mapped_tokens(const fs::path& path) {
  try {
    return MappedFile(path);
  } catch (const std::system_error& error) {
    refuse_token_file(path.string(), "{}; name a readable file of tokens", error.code().message());
  }
}

/// The llm.c kind that the file begins with; null when it is none.
const LlmcKind* llmc_kind(std::span<const std::uint8_t> file) {
  std::int32_t magic = 0;
  if (file.size() < sizeof(magic)) return nullptr;
  std::memcpy(&magic, file.data(), sizeof(magic));
  const auto* const found = std::ranges::find(kLlmcKinds, magic, &LlmcKind::magic);
  return found == std::end(kLlmcKinds) ? nullptr : found;
}

/// The first 64 KiB as integers of a type.
template <class Token>
std::vector<Token> first_tokens(std::span<const std::uint8_t> file) {
  std::vector<Token> tokens(std::min<std::size_t>(file.size(), 64 << 10) / sizeof(Token));
  if (!tokens.empty()) std::memcpy(tokens.data(), file.data(), tokens.size() * sizeof(Token));
  return tokens;
}

/// Of a file without a header. 16 bits are what nanoGPT and Megatron's tools write; wider ones show by their upper
/// halves: all zero, or, for a vocabulary that needs them, no larger than its ids are.
TokenType type_without_header(std::span<const std::uint8_t> file, std::int64_t vocabulary, std::string_view name) {
  constexpr std::size_t kEnough = 16;  // tokens that tell
  const auto below = [&](std::int64_t most, const auto& tokens) {
    return tokens.size() >= kEnough && std::ranges::any_of(tokens, [](auto token) { return token != 0; }) &&
           std::ranges::all_of(tokens, [&](auto token) { return std::cmp_less(token, most); });
  };
  const std::int64_t most = std::max(vocabulary, kIdsOf16Bits);
  if (file.size() % 8 == 0 && below(most, first_tokens<std::uint64_t>(file))) return TokenType::I64;
  if (file.size() % 4 == 0 && below(most, first_tokens<std::uint32_t>(file))) return TokenType::U32;
  if (vocabulary > kIdsOf16Bits) {
    refuse_token_file(
        name,
        "it has no header, and as 32-bit tokens its first 64 KiB have ids that a vocabulary of {} has not; "
        "16-bit tokens cannot hold all of its ids: write them anew with a header of llm.c's (version 7) or "
        "with an .idx of Megatron's",
        vocabulary);
  }
  return TokenType::U16;
}

}  // namespace

TokenLayout find_tokens(std::span<const std::uint8_t> file, std::string_view name, std::int64_t vocabulary) {
  TokenLayout layout;
  layout.documents = {0};
  std::size_t begin = 0;
  if (const LlmcKind* const kind = llmc_kind(file)) {
    if (file.size() < kLlmcHeader) {
      refuse_token_file(name, "it has {} bytes, and the header of llm.c's files takes {}; write it anew", file.size(),
                        kLlmcHeader);
    }
    std::int32_t version = 0, count = 0;
    std::memcpy(&version, file.data() + sizeof(version), sizeof(version));
    std::memcpy(&count, file.data() + 2 * sizeof(count), sizeof(count));
    if (version != kind->version) refuse_token_file(name, "version {} at byte 4 is not {}", version, kind->version);
    const std::size_t width = width_of(kind->type), bytes = file.size() - kLlmcHeader;
    if (count < 0 || bytes % width != 0 || static_cast<std::size_t>(count) != bytes / width) {
      refuse_token_file(name, "{} tokens at byte 8 take {} bytes each, and {} follow the header; write it anew", count,
                        width, bytes);
    }
    layout.type = kind->type;
    layout.size = count;
    begin = kLlmcHeader;
  } else {
    if (file.size() % sizeof(std::uint16_t) != 0) {
      refuse_token_file(
          name,
          "{} bytes are no whole number of 16-bit tokens, and there is no header of llm.c's nor an .idx beside it",
          file.size());
    }
    layout.type = type_without_header(file, vocabulary, name);
    const std::size_t width = width_of(layout.type);
    layout.size = static_cast<std::int64_t>(file.size() / width);
  }
  if (layout.size == 0) refuse_token_file(name, "it has no tokens; name one that has");
  layout.runs.push_back({0, begin});
  return layout;
}

TokenFile::TokenFile(std::string name, MappedFile file, TokenLayout layout)
    : name_(std::move(name)), file_(std::move(file)), layout_(std::move(layout)) {}

bool is_token_file(const std::filesystem::path& path) {
  return path.extension() == ".bin" || path.extension() == ".idx";
}

TokenFile TokenFile::open(const fs::path& path, std::int64_t vocabulary) {
  fs::path tokens = path;
  if (tokens.extension() == ".idx") tokens.replace_extension(".bin");
  fs::path index = tokens;
  index.replace_extension(".idx");
  MappedFile file = mapped_tokens(tokens);
  std::error_code ignored;
  if (!fs::exists(index, ignored)) {
    TokenLayout layout = find_tokens(file.bytes(), tokens.string(), vocabulary);
    return {tokens.string(), std::move(file), std::move(layout)};
  }
  const MappedFile index_file = mapped_tokens(index);
  TokenLayout layout = parse_megatron_index(index_file.bytes(), file.bytes().size(), index.string());
  if (layout.size == 0) refuse_token_file(index.string(), "it has no tokens; name one that has");
  return {tokens.string(), std::move(file), std::move(layout)};
}

void TokenFile::copy(std::int64_t offset, std::span<std::int64_t> out) const {
  if (offset < 0 || offset > size() || std::cmp_greater(out.size(), size() - offset)) {
    throw Error(fmt::format("token file: {}: {} tokens from number {} on are not inside the {} there are", name_,
                            out.size(), offset, size()));
  }
  if (out.empty()) return;
  auto run = std::ranges::upper_bound(layout_.runs, offset, {}, &TokenRun::first) - 1;
  const std::size_t width = width_of(type());
  std::vector<std::uint8_t> bytes;
  for (; !out.empty(); ++run) {
    const std::int64_t end = run + 1 == layout_.runs.end() ? size() : (run + 1)->first;
    const std::size_t count = std::min(out.size(), static_cast<std::size_t>(end - offset));
    bytes.resize(count * width);
    if (!file_.copy(run->begin + static_cast<std::size_t>(offset - run->first) * width, bytes)) {
      throw Error(
          fmt::format("token file: {}: it has become shorter since it was opened; do not change data.path "
                      "while a run reads it",
                      name_));
    }
    read_tokens(type(), bytes.data(), out.first(count));
    out = out.subspan(count);
    offset = end;
  }
  file_.let_go();
}

}  // namespace snug::data
