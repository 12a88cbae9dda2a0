#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "snug/base/mapped_file.h"
#include "snug/data/token_layout.h"

namespace snug::data {

inline constexpr std::int64_t kIdsOf16Bits = 1 << 16;

/// Where the tokens of a file without an index are: after the header of llm.c's files (magic 20240520 and 16-bit
/// tokens, or 20240801 and 32-bit ones), or from its start on, as nanoGPT writes them: 16-bit, unless its first 64 KiB
/// show that they are 32 or 64 bits wide. Both are one document. `name` is the file's for errors; `vocabulary`: how
/// many ids there are. Throws UsageError when a header and the length disagree, when there is no token, for an odd
/// number of bytes, and where there are more ids than 16 bits hold and no wider tokens.
TokenLayout find_tokens(std::span<const std::uint8_t> file, std::string_view name,
                        std::int64_t vocabulary = kIdsOf16Bits);

/// Whether a name ends as those of files of tokens do: .bin, or the .idx beside it.
bool is_token_file(const std::filesystem::path& path);

/// A file of token ids, mapped read-only: it costs address space and page cache, no memory of its own. Movable, not
/// copyable. Reads are safe from any number of threads.
class TokenFile {
 public:
  /// Opens one of Megatron-LM's pairs when a file of the same name that ends in .idx is beside the .bin (either may be
  /// named), else a file that find_tokens() knows. Throws UsageError naming the file, the place and the rule.
  static TokenFile open(const std::filesystem::path& path, std::int64_t vocabulary = kIdsOf16Bits);

  [[nodiscard]] std::int64_t size() const { return layout_.size; }
  [[nodiscard]] TokenType type() const { return layout_.type; }
  /// The first token of each document.
  [[nodiscard]] std::span<const std::int64_t> documents() const { return layout_.documents; }
  /// The file's name, for errors.
  [[nodiscard]] const std::string& name() const { return name_; }

  /// Copies out.size() tokens from number `offset` on. Throws Error when they are not all inside, or the file has
  /// become shorter.
  void copy(std::int64_t offset, std::span<std::int64_t> out) const;

 private:
  TokenFile(std::string name, MappedFile file, TokenLayout layout);

  std::string name_;
  MappedFile file_;
  TokenLayout layout_;
};

}  // namespace snug::data
