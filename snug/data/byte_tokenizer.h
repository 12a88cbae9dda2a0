#pragma once

#include "snug/data/tokenizer.h"

namespace snug::data {

/// Every byte is a token: ids 0 to 255.
class ByteTokenizer final : public Tokenizer {
 public:
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text) const override;
  [[nodiscard]] std::string decode(const std::vector<TokenId>& ids) const override;
  [[nodiscard]] TokenId size() const override { return 256; }
  [[nodiscard]] std::optional<TokenId> find(std::string_view /*token*/) const override { return std::nullopt; }
  [[nodiscard]] bool of_bytes() const override { return true; }
};

}  // namespace snug::data
