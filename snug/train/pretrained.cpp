#include "snug/train/pretrained.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/data/sentence_piece.h"
#include "snug/data/tokenizer_format.h"
#include "snug/state/manifest.h"
#include "snug/train/gguf_tokenizer.h"
#include "snug/train/refuse_model.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

/// Tokens of a folder beside its tokenizer.model would be cut up as text.
void refuse_added_tokens(const fs::path& folder, std::int64_t known) {
  const fs::path file = folder / "added_tokens.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return;
  const auto added = nlohmann::json::parse(model_text(file), nullptr, /*allow_exceptions=*/false);
  if (!added.is_object()) throw UsageError(fmt::format("tokenizer: {}: it is no JSON object", file.string()));
  for (const auto& [token, id] : added.items()) {
    if (!id.is_number_integer() || id < known) continue;
    throw UsageError(
        fmt::format("tokenizer: {} adds \"{}\", token {}, to the {} of tokenizer.model, which is not supported; for "
                    "text without such tokens set data.tokenizer = \"{}\"",
                    file.string(), token, id.get<std::int64_t>(), known, (folder / "tokenizer.model").string()));
  }
}

}  // namespace

Pretrained::Pretrained(fs::path path, std::vector<data::TokenId> ends, std::shared_ptr<const state::Gguf> gguf)
    : path_(std::move(path)), ends_(std::move(ends)), gguf_(std::move(gguf)) {}

std::string Pretrained::fingerprint() const {
  // All over a file: its beginning may be a vocabulary, the same in each model of a family.
  constexpr std::uintmax_t kSamples = 256, kSample = 4096;
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_directory(path_, error)) {
    for (fs::directory_iterator entry(path_, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
    }
    std::ranges::sort(files);
  } else {
    files.push_back(path_);
  }
  std::string sampled;
  for (const fs::path& file : files) {
    const std::uintmax_t size = fs::file_size(file, error);
    sampled += fmt::format("{}:", size);
    std::ifstream in(file, std::ios::binary);
    std::string sample(kSample, '\0');
    for (std::uintmax_t i = 0; i < kSamples && i * kSample < size; ++i) {
      in.clear();
      in.seekg(static_cast<std::streamoff>(std::max(i * kSample, size / kSamples * i)));
      in.read(sample.data(), kSample);
      sampled.append(sample, 0, static_cast<std::size_t>(in.gcount()));
    }
  }
  return fmt::format(", {} files, {}", files.size(), state::hash_of(sampled));
}

void Pretrained::check_fits(const data::Tokenizer& tokenizer, const fs::path& from) const {
  if (const auto tokens = tokenizer.size(); tokens > vocabulary()) {
    throw UsageError(fmt::format("tokenizer: that of {} has {} tokens and the model {}; they do not belong together",
                                 from.string(), tokens, vocabulary()));
  }
}

std::unique_ptr<const data::Tokenizer> Pretrained::tokenizer() const {
  const auto made = [&]() -> std::unique_ptr<const data::Tokenizer> {
    if (gguf_ != nullptr) return std::make_unique<data::BytePairTokenizer>(tokenizer_of_gguf(gguf_->header, path_));
    if (const fs::path model = path_ / "tokenizer.model"; fs::exists(model)) {
      auto pieces = data::open_tokenizer(model, {.begin = true});
      refuse_added_tokens(path_, pieces->size());
      return pieces;
    }
    return data::open_tokenizer(path_ / "tokenizer.json");
  };
  auto tokenizer = made();
  check_fits(*tokenizer, path_);
  return tokenizer;
}

std::vector<data::TokenId> ends_of_json(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<data::TokenId> ends;
  if (!json.is_object() || !json.contains("eos_token_id")) return ends;
  const nlohmann::json& value = json["eos_token_id"];
  for (const nlohmann::json& id : value.is_array() ? value : nlohmann::json::array({value})) {
    if (id.is_number_integer()) ends.push_back(id.get<data::TokenId>());
  }
  return ends;
}

}  // namespace snug::train
