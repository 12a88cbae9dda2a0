#include "snug/train/model_files.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "snug/data/gguf_vocabulary.h"
#include "snug/train/hub_cache.h"
#include "snug/train/refuse_model.h"

namespace snug::train {

namespace fs = std::filesystem;

namespace {

/// One, a list, or none.
std::vector<data::TokenId> ends_in(const JsonField& config) {
  const auto ends = config.find("eos_token_id");
  if (!ends) return {};
  return ends->is_array() ? ends->as<std::vector<data::TokenId>>() : std::vector{ends->as<data::TokenId>()};
}

}  // namespace

ModelFiles::ModelFiles(fs::path path) : path_(std::move(path)) {
  if (is_hub_name(path_)) refuse_model(path_, how_to_get(path_.string()));
  std::error_code ignored;
  if (!fs::is_directory(path_, ignored)) {
    gguf_ = std::make_shared<const state::Gguf>(state::open_gguf(path_));
    return;
  }
  const fs::path config = path_ / "config.json";
  config_ = std::make_shared<const JsonFile>(model_text(config), model_source(config));
}

GgufFields ModelFiles::metadata() const { return {gguf_->header.metadata, model_source(path_)}; }

std::string ModelFiles::architecture() const {
  return gguf_ != nullptr ? metadata().required<std::string>("general.architecture")
                          : config().required<std::string>("model_type");
}

std::vector<data::TokenId> ModelFiles::ends() const {
  if (gguf_ != nullptr) return data::ends_of_gguf(metadata());
  const fs::path generation = path_ / "generation_config.json";
  std::error_code ignored;
  if (fs::exists(generation, ignored)) {
    const JsonFile file(model_text(generation), model_source(generation));
    if (auto ends = ends_in(file.root()); !ends.empty()) return ends;
  }
  return ends_in(config());
}

}  // namespace snug::train
