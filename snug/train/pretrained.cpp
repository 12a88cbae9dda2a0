#include "snug/train/pretrained.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/data/gguf_vocabulary.h"
#include "snug/data/tokenizer_format.h"
#include "snug/state/manifest.h"
#include "snug/train/refuse_model.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

/// Tokens of a folder beside its tokenizer.model would be cut up as text.
void refuse_added_tokens(const fs::path& folder, std::int64_t known) {
  const fs::path file = folder / "added_tokens.json";
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return;
  const JsonFile added(model_text(file), {.name = fmt::format("tokenizer: {}", file.string()),
                                          .cure = "put that of the tokenizer's own model there"});
  for (const auto& [token, field] : added.root().members()) {
    const auto id = field.as<data::TokenId>();
    if (id < known) continue;
    throw UsageError(
        fmt::format("tokenizer: {} adds {}, token {}, to the {} of tokenizer.model, which is not supported; for "
                    "text without such tokens set data.tokenizer = \"{}\"",
                    file.string(), quoted_text(token), id, known, (folder / "tokenizer.model").string()));
  }
}

}  // namespace

Pretrained::Pretrained(ModelFiles files) : files_(std::move(files)), ends_(files_.ends()) {}

std::string Pretrained::fingerprint() const {
  // All over a file: its beginning may be a vocabulary, the same in each model of a family.
  constexpr std::uintmax_t kSamples = 256, kSample = 4096;
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_directory(path(), error)) {
    for (fs::directory_iterator entry(path(), error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      if (entry->path().extension() == ".safetensors") files.push_back(entry->path());
    }
    std::ranges::sort(files);
  } else {
    files.push_back(path());
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
    if (const state::Gguf* const gguf = files_.gguf()) {
      return std::make_unique<data::BytePairTokenizer>(data::tokenizer_of_gguf(gguf->header.metadata, path().string()));
    }
    if (const fs::path model = path() / "tokenizer.model"; fs::exists(model)) {
      auto pieces = data::open_tokenizer(model, {.begin = true});
      refuse_added_tokens(path(), pieces->size());
      return pieces;
    }
    return data::open_tokenizer(path() / "tokenizer.json");
  };
  auto tokenizer = made();
  check_fits(*tokenizer, path());
  return tokenizer;
}

}  // namespace snug::train
