#include "snug/train/pretrained.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

#include "snug/base/errors.h"
#include "snug/data/gguf_vocabulary.h"
#include "snug/data/tokenizer_folder.h"
#include "snug/state/manifest.h"
#include "snug/train/refuse_model.h"

namespace snug::train {

namespace fs = std::filesystem;

Pretrained::Pretrained(ModelFiles files) : files_(std::move(files)), ends_(files_.ends()) {}

std::optional<data::TokenId> Pretrained::begin() const {
  if (files_.gguf() == nullptr) return std::nullopt;
  return files_.metadata().find<data::TokenId>("tokenizer.ggml.bos_token_id");
}

std::string Pretrained::fingerprint() const {
  // All over a file: its beginning may be a vocabulary, the same in each model of a family.
  constexpr std::uintmax_t kSamples = 256, kSample = 4096;
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_directory(path(), error)) {
    for (fs::directory_iterator entry(path(), error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      const bool decides = entry->path().extension() == ".safetensors" || entry->path().filename() == "config.json";
      if (decides) files.push_back(entry->path());
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
    return data::open_tokenizer_of_folder(path(), {.begin = true});
  };
  auto tokenizer = made();
  check_fits(*tokenizer, path());
  return tokenizer;
}

}  // namespace snug::train
