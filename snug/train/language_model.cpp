#include "snug/train/language_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/listing.h"
#include "snug/data/end_token.h"
#include "snug/data/packed_dataset.h"
#include "snug/data/tokenizer_format.h"
#include "snug/described/described_device.h"
#include "snug/described/new_tensors.h"
#include "snug/memory/tag.h"
#include "snug/models/lora.h"
#include "snug/models/task.h"
#include "snug/state/load_weights.h"
#include "snug/state/peft_adapter.h"
#include "snug/train/model_family.h"
#include "snug/train/pretrained.h"
#include "snug/train/run_device.h"

namespace snug::train {
namespace {

models::LoraOptions lora_options(const LoraConfig& c) {
  models::LoraOptions o;
  o.targets = split_list(c.targets);
  o.rank = c.rank;
  o.alpha = c.alpha;
  o.dropout = c.dropout;
  o.modules_to_save = split_list(c.modules_to_save);
  o.scale = c.scale;
  return o;
}

std::unique_ptr<LanguageModel> make_base(const Config& config, const Pretrained* pretrained) {
  const memory::TagScope tag(memory::Tag::Weights);
  const ModelConfig& m = config.model;
  if (pretrained == nullptr) return model_family(m.kind).make(m);
  if (m.sequence > pretrained->longest()) {
    throw UsageError(
        fmt::format("model: model.sequence = {} is longer than the {} that {} was made for; set it to {} "
                    "or less",
                    m.sequence, pretrained->longest(), pretrained->path().string(), pretrained->longest()));
  }
  return pretrained->model(m);
}

/// What a tokenizer, and the files that belong to it, call the end of a text.
std::optional<data::TokenId> own_end(const std::string& name, const Pretrained* pretrained,
                                     const data::Tokenizer& tokenizer) {
  if (name == "auto") return data::end_token(tokenizer, pretrained->path());
  const std::filesystem::path path = name;
  const bool alone = data::tokenizer_format(path).beside == data::TokenizerFormat::Beside::Nothing;
  return alone ? tokenizer.end_token() : data::end_token(tokenizer, path.parent_path());
}

/// Ends of names that mean exactly those modules, where there are such; else the names. PEFT reads either.
std::vector<std::string> targets_for_peft(const torch::nn::Module& model) {
  std::set<std::string> adapted, ends, others;
  const auto end_of = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  for (const auto& [name, linear] : models::linear_modules(model)) {
    if (linear->adapted()) {
      adapted.insert(name);
      ends.insert(end_of(name));
    } else {
      others.insert(end_of(name));
    }
  }
  const bool exact = std::ranges::none_of(ends, [&](const std::string& end) { return others.contains(end); });
  const std::set<std::string>& named = exact ? ends : adapted;
  return {named.begin(), named.end()};
}

/// Names of modules with which PEFT means the modules that these mean here: PEFT takes all whose names end so, "norm"
/// for "input_layernorm", too.
std::vector<std::string> whole_for_peft(const torch::nn::Module& model, const std::vector<std::string>& names) {
  std::set<std::string> modules;
  for (const auto& parameter : model.named_parameters()) {
    const std::string& name = parameter.key();
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      modules.insert(name.substr(0, dot));
  }
  std::vector<std::string> all;
  for (const std::string& name : names) {
    std::vector<std::string> meant;
    bool is_exact = true;
    for (const std::string& module : modules) {
      if (!module.ends_with(name)) continue;
      const bool at_dot = module.size() == name.size() || module[module.size() - name.size() - 1] == '.';
      if (at_dot) meant.push_back(module);
      is_exact = is_exact && at_dot;
    }
    if (is_exact) meant = {name};
    all.insert(all.end(), meant.begin(), meant.end());
  }
  return all;
}

}  // namespace

at::Tensor LanguageModel::loss(const data::Batch& batch) const {
  if (!batch.documents.defined()) return model_->loss(batch.input, batch.target);
  return model_->loss(batch.input, batch.target, {batch.positions, data::document_mask(batch.documents)});
}

at::Tensor LanguageModel::run_stage(int stage, const at::Tensor& input, const data::Batch& batch) const {
  if (!batch.documents.defined()) return model_->run_stage(stage, input, batch.input, batch.target, nullptr);
  const models::DocumentRows rows{batch.positions, data::document_mask(batch.documents)};
  return model_->run_stage(stage, input, batch.input, batch.target, &rows);
}

models::VocabularyLoss vocabulary_loss(const ModelConfig& model) {
  const models::TiledLoss tile{.logits = model.loss_tile * 1_MiB};
  switch (model.loss) {
    case LossKind::Plain:
      return models::PlainLoss{};
    case LossKind::Tiled:
      return tile;
    case LossKind::Auto:
      break;
  }
  const models::VocabularyLoss usual = model_family(model.kind).usual_loss;
  return std::holds_alternative<models::TiledLoss>(usual) ? tile : usual;
}

void take_kind_of_files(Config& config) {
  if (config.model.path.empty() || config.given.contains("model.kind")) return;
  config.model.kind = family_of(ModelFiles(config.model.path)).name;
}

std::unique_ptr<const Pretrained> open_pretrained(const Config& config) {
  const ModelConfig& m = config.model;
  if (m.path.empty()) return nullptr;
  const ModelFiles files(m.path);
  const ModelFamily& family = family_of(files);
  if (family.name != m.kind) {
    throw UsageError(fmt::format("model: {} is of the kind \"{}\", and model.kind is \"{}\"; set it to \"{}\"", m.path,
                                 family.name, m.kind, family.name));
  }
  return family.open(files);
}

std::unique_ptr<LanguageModel> make_model(const Config& config, const Pretrained* pretrained) {
  std::optional<described::NewTensorsOn> there;
  if (const c10::Device device = device_of(config); device.type() == described::kDescribed) there.emplace(device);
  auto model = make_base(config, pretrained);
  if (config.precision.weights == TrainedWeights::Bf16) {
    const memory::TagScope tag(memory::Tag::Weights);
    model->module().to(at::kBFloat16);
  }
  if (!config.lora.adapter.empty()) {
    load_adapter(model->module(), config.lora.adapter);
  } else if (config.lora.rank > 0) {
    const memory::TagScope tag(memory::Tag::Weights);
    models::add_lora(model->module(), lora_options(config.lora));
  }
  if (config.model.loss == LossKind::Tiled && model->output_adapted()) {
    throw UsageError(
        "model: model.loss is \"tiled\", and the output projection has an adapter, whose product is none of one "
        "matrix; "
        "set it to \"auto\", or leave lm_head out of lora.targets");
  }
  if (config.given.contains("model.loss_tile") && model->output_adapted()) {
    throw UsageError(
        "model: model.loss_tile is of a tiled loss, and the output projection has an adapter, whose product is none of "
        "one matrix; leave it out, or leave lm_head out of lora.targets");
  }
  model->attend_by(config.model.attention);
  model->feed_forward_by(config.model.mlp_tile);
  if (config.model.weights == BaseWeights::Packed && models::lora_parameters(model->module()).empty()) {
    throw UsageError("model: model.weights = \"packed\" is frozen and leaves nothing to train; set lora.rank");
  }
  const memory::TagScope tag(memory::Tag::Weights);
  model->module().to(device_of(config));
  return model;
}

std::unique_ptr<const data::Tokenizer> make_tokenizer(const Config& config, const Pretrained* pretrained) {
  const std::string& name = config.data.tokenizer;
  if (name == "auto") return pretrained != nullptr ? pretrained->tokenizer() : data::open_tokenizer("bytes");
  // Every text of a pretrained model whose tokenizer leaves that open begins with its first token.
  auto tokenizer = data::open_tokenizer(name, {.begin = pretrained != nullptr});
  if (pretrained != nullptr) {
    pretrained->check_fits(*tokenizer, name);
  } else if (const auto tokens = tokenizer->size(); tokens > config.model.vocabulary) {
    throw UsageError(fmt::format("tokenizer: {} has {} tokens, and model.vocabulary is {}; set it to {} or more", name,
                                 tokens, config.model.vocabulary, tokens));
  }
  return tokenizer;
}

std::optional<data::TokenId> end_of_documents(const Config& config, const Pretrained* pretrained,
                                              const data::Tokenizer& tokenizer) {
  if (tokenizer.of_bytes()) return std::nullopt;
  const std::optional<data::TokenId> end = own_end(config.data.tokenizer, pretrained, tokenizer);
  const std::vector<data::TokenId> stops = pretrained != nullptr ? pretrained->ends() : std::vector<data::TokenId>();
  const bool known = !stops.empty() && stops.front() < tokenizer.size();
  if (known && (!end || std::ranges::find(stops, *end) == stops.end())) return stops.front();
  return end;
}

namespace {

/// The model's, where it is the output projection, too.
std::optional<std::string> tied_embedding(const torch::nn::Module& model) {
  const auto* const lm = dynamic_cast<const models::CausalLmImpl*>(&model);
  return lm != nullptr ? lm->tied_embedding() : std::nullopt;
}

/// Of an adapter that trained a token embedding whole which is the model's output projection, too: PEFT stores both.
/// Throws UsageError where they were trained apart.
void take_tied(state::PeftAdapter& adapter, const torch::nn::Module& model, const std::filesystem::path& folder) {
  const std::optional<std::string> embedding = tied_embedding(model);
  const bool has_head = models::is_inside(state::kOutputProjection, adapter.modules_to_save);
  if (!embedding || !(has_head || models::is_inside(*embedding, adapter.modules_to_save))) return;
  const auto refuse = [&](const char* why) {
    throw UsageError(fmt::format(
        "adapter: {}: {}, and the model has one matrix for the token embedding and the output projection; train the "
        "adapter with ensure_weight_tying=True (PEFT 0.18 or later)",
        folder.string(), why));
  };
  if (!adapter.tied) refuse("modules_to_save has one of the two without ensure_weight_tying");
  const auto head = adapter.whole.find(state::kOutputProjection), own = adapter.whole.find(*embedding);
  if (head != adapter.whole.end() && own == adapter.whole.end()) {
    auto node = adapter.whole.extract(head);
    node.key() = *embedding;
    adapter.whole.insert(std::move(node));
  } else if (head != adapter.whole.end()) {
    const bool alike = head->second.dtype == own->second.dtype && head->second.shape == own->second.shape;
    if (!alike || !at::equal(head->second.read(), own->second.read())) refuse("its two matrices differ");
    adapter.whole.erase(head);
  }
  if (has_head) {
    std::erase_if(adapter.modules_to_save,
                  [](const std::string& name) { return models::is_inside(state::kOutputProjection, {name}); });
    adapter.modules_to_save.push_back(embedding->substr(0, embedding->rfind('.')));
  }
}

/// Whether it has these values, stored in whatever type.
bool is_of(const state::StoredTensor& stored, const at::Tensor& tensor) {
  return tensor.sizes() == at::IntArrayRef(stored.shape) && at::equal(stored.read().to(tensor.options()), tensor);
}

}  // namespace

void load_adapter(torch::nn::Module& model, const std::filesystem::path& folder) {
  const memory::TagScope tag(memory::Tag::Weights);
  state::PeftAdapter adapter = state::open_peft_adapter(folder);
  take_tied(adapter, model, folder);
  models::LoraOptions options;
  options.targets = adapter.modules();
  options.rank = adapter.rank;
  options.alpha = adapter.alpha;
  options.dropout = adapter.dropout;
  if (adapter.root_of_rank) options.scale = models::LoraScale::AlphaOverRootRank;
  options.modules_to_save = adapter.modules_to_save;

  // All that does not fit, before anything is changed.
  std::vector<std::string> faults;
  const models::LinearModules modules = models::linear_modules(model);
  for (const std::string& name : options.targets) {
    const auto found = std::ranges::find(modules, name, &models::LinearModules::value_type::first);
    if (found == modules.end()) {
      faults.push_back(name + " (not there)");
      continue;
    }
    const auto& linear = found->second;
    const std::int64_t in = adapter.tensors.at(name + ".lora_A.weight").shape[1];
    const std::int64_t out = adapter.tensors.at(name + ".lora_B.weight").shape[0];
    if (in != linear->in() || out != linear->out()) {
      faults.push_back(
          fmt::format("{} ({}x{} in the model, {}x{} in the adapter)", name, linear->out(), linear->in(), out, in));
    }
  }
  const auto parameters = model.named_parameters();
  const auto buffers = model.named_buffers();
  const auto own = [&](const std::string& name) -> const at::Tensor* {
    const at::Tensor* const parameter = parameters.find(name);
    return parameter != nullptr ? parameter : buffers.find(name);
  };
  for (const auto& [name, stored] : adapter.whole) {
    const at::Tensor* const tensor = own(name);
    if (tensor == nullptr) {
      faults.push_back(name + " (not there)");
    } else if (tensor->sizes() != at::IntArrayRef(stored.shape)) {
      faults.push_back(fmt::format("{} ({} in the model, {} in the adapter)", name, fmt::join(tensor->sizes(), "x"),
                                   fmt::join(stored.shape, "x")));
    }
  }
  for (const auto& [module, stored] : adapter.bases) {
    // What is packed is compared by its size alone, above.
    const at::Tensor* const tensor = own(module + ".weight");
    if (tensor != nullptr && !is_of(stored, *tensor)) faults.push_back(module + " (whose own weights differ)");
  }
  if (!faults.empty()) {
    throw UsageError(fmt::format("adapter: {} is for another model{}: of its {} modules {} do not fit: {}",
                                 folder.string(), adapter.base.empty() ? "" : " (" + adapter.base + ")",
                                 options.targets.size() + adapter.whole.size(), faults.size(), listed(faults)));
  }
  models::add_lora(model, options);
  const at::NoGradGuard no_grad;
  for (auto& [name, parameter] : models::lora_parameters(model)) {
    const_cast<at::Tensor&>(parameter).copy_(adapter.tensors.at(name).read());
  }
  for (const auto& [name, stored] : adapter.whole) at::Tensor(*own(name)).copy_(stored.read());
}

void save_adapter(const torch::nn::Module& model, const std::string& base, const std::filesystem::path& folder) {
  auto tensors = models::lora_parameters(model);
  for (auto& whole : models::whole_modules(model)) tensors.push_back(std::move(whole));
  save_adapter(model, base, folder, {tensors.begin(), tensors.end()});
}

void save_adapter(const torch::nn::Module& model, const std::string& base, const std::filesystem::path& folder,
                  const state::NamedSources& tensors) {
  const models::LoraOptions* const options = models::lora_options(model);
  if (options == nullptr) throw UsageError("adapter: the model has none to save");
  state::PeftAdapter adapter;
  adapter.base = base;
  adapter.alpha = options->alpha;
  adapter.dropout = options->dropout;
  adapter.root_of_rank = options->scale == models::LoraScale::AlphaOverRootRank;
  adapter.rank = options->rank;
  adapter.targets = targets_for_peft(model);
  adapter.modules_to_save = whole_for_peft(model, options->modules_to_save);
  if (const auto* const has = dynamic_cast<const models::HasTask*>(&model)) adapter.task_type = has->task().peft_type;
  adapter.fan_in_fan_out = std::ranges::any_of(models::linear_modules(model), [](const auto& l) {
    return l.second->adapted() && l.second->layout() == models::WeightLayout::InOut;
  });
  const std::optional<std::string> embedding = tied_embedding(model);
  if (!embedding || !models::is_inside(*embedding, adapter.modules_to_save))
    return state::write_peft_adapter(folder, adapter, tensors);
  // As PEFT stores both.
  adapter.tied = true;
  state::NamedSources with_head = tensors;
  for (const auto& [name, source] : tensors) {
    if (name == *embedding) with_head.emplace_back(state::kOutputProjection, source);
  }
  state::write_peft_adapter(folder, adapter, with_head);
}

}  // namespace snug::train
