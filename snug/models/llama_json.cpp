#include "snug/models/llama_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"

namespace snug::models {
namespace {

constexpr Range kDimension{.low = 1, .high = 4294967296};

using ReadScaling = RotaryScaling (*)(const JsonField& rotary, std::int64_t sequence);

/// All that is read of rotary embeddings, and "finetuned", which changes nothing.
constexpr std::array<std::string_view, 15> kRotaryKeys{
    "rope_type",        "type",      "rope_theta", "factor",         "original_max_position_embeddings",
    "low_freq_factor",  "mscale",    "beta_fast",  "truncate",       "partial_rotary_factor",
    "high_freq_factor", "beta_slow", "finetuned",  "mscale_all_dim", "attention_factor"};

double factor_of(const JsonField& rotary) { return rotary.required<double>("factor", kPositive); }

std::int64_t trained_length(const JsonField& rotary, std::int64_t otherwise) {
  return rotary.optional("original_max_position_embeddings", otherwise, kDimension);
}

RotaryScaling no_scaling(const JsonField& /*rotary*/, std::int64_t /*sequence*/) { return NoScaling{}; }
RotaryScaling linear_scaling(const JsonField& rotary, std::int64_t /*sequence*/) {
  return LinearScaling{factor_of(rotary)};
}
RotaryScaling dynamic_scaling(const JsonField& rotary, std::int64_t sequence) {
  return DynamicScaling{factor_of(rotary), sequence};  // whatever the original length is said to be, as in transformers
}
RotaryScaling llama3_scaling(const JsonField& rotary, std::int64_t /*sequence*/) {
  return Llama3Scaling{factor_of(rotary), rotary.required<double>("low_freq_factor"),
                       rotary.required<double>("high_freq_factor"),
                       rotary.required<std::int64_t>("original_max_position_embeddings", kDimension)};
}
RotaryScaling yarn_scaling(const JsonField& rotary, std::int64_t sequence) {
  YarnScaling s{.factor = factor_of(rotary),
                .fast_rotations = rotary.optional("beta_fast", 32.0),
                .slow_rotations = rotary.optional("beta_slow", 1.0),
                .trained_length = trained_length(rotary, sequence)};
  const double scale = rotary.optional("mscale", 0.0), scale_of_all = rotary.optional("mscale_all_dim", 0.0);
  if (const auto factor = rotary.find("attention_factor")) {
    s.attention_factor = factor->as<double>();
  } else if (scale != 0 && scale_of_all != 0) {
    s.attention_factor = yarn_temperature(s.factor, scale) / yarn_temperature(s.factor, scale_of_all);
  }
  s.whole_dimensions = rotary.optional("truncate", s.whole_dimensions);
  return s;
}

constexpr std::array<std::pair<std::string_view, ReadScaling>, 5> kScalings{{{"default", no_scaling},
                                                                             {"linear", linear_scaling},
                                                                             {"dynamic", dynamic_scaling},
                                                                             {"llama3", llama3_scaling},
                                                                             {"yarn", yarn_scaling}}};

void refuse_unknown_rotary(const JsonField& rotary) {
  for (const auto& [key, value] : rotary.members()) {
    if (std::ranges::find(kRotaryKeys, key) != kRotaryKeys.end()) continue;
    value.fail(fmt::format(
        "its rotary embeddings have {}, which is not known; take it out there if the model does without", key));
  }
}

void refuse_partial(const JsonField& rotary) {
  if (rotary.optional("partial_rotary_factor", 1.0) != 1) rotary.at("partial_rotary_factor").refuse("1");
}

struct BaseAndScaling {
  double base = 0;
  RotaryScaling scaling{};
};

BaseAndScaling read_one(const JsonField& rotary, double base, std::int64_t sequence) {
  refuse_unknown_rotary(rotary);
  refuse_partial(rotary);
  BaseAndScaling read{.base = rotary.optional("rope_theta", base, kPositive)};
  auto kind = rotary.find("rope_type");
  if (!kind) kind = rotary.find("type");
  if (kind) read.scaling = kind->one_of(kScalings)(rotary, sequence);
  return read;
}

/// Settings that change results and are known in one way alone.
void refuse_unknown(const JsonField& json) {
  if (const JsonField type = json.at("model_type"); !type.is("llama")) type.refuse("\"llama\"");
  for (const char* biased : {"attention_bias", "mlp_bias"}) {
    if (json.optional(biased, false)) json.at(biased).refuse("false");
  }
  if (json.optional("attention_dropout", 0.0) != 0) json.at("attention_dropout").refuse("0, which may be set there");
  if (json.optional<std::string>("hidden_act", "silu") != "silu") json.at("hidden_act").refuse("\"silu\"");
}

using OrderedJson = nlohmann::ordered_json;

struct RotaryJson {
  OrderedJson operator()(const NoScaling&) const { return {{"rope_type", "default"}}; }
  OrderedJson operator()(const LinearScaling& s) const { return {{"rope_type", "linear"}, {"factor", s.factor}}; }
  OrderedJson operator()(const DynamicScaling& s) const {
    return {{"rope_type", "dynamic"}, {"factor", s.factor}, {"original_max_position_embeddings", s.trained_length}};
  }
  OrderedJson operator()(const Llama3Scaling& s) const {
    return {{"rope_type", "llama3"},
            {"factor", s.factor},
            {"low_freq_factor", s.low_frequency_factor},
            {"high_freq_factor", s.high_frequency_factor},
            {"original_max_position_embeddings", s.trained_length}};
  }
  OrderedJson operator()(const YarnScaling& s) const {
    OrderedJson json = {{"rope_type", "yarn"},
                        {"factor", s.factor},
                        {"beta_fast", s.fast_rotations},
                        {"beta_slow", s.slow_rotations},
                        {"original_max_position_embeddings", s.trained_length}};
    if (s.attention_factor) json["attention_factor"] = *s.attention_factor;
    if (!s.whole_dimensions) json["truncate"] = false;
    return json;
  }
  OrderedJson operator()(const DividedFrequencies&) const {
    throw UsageError("model: its rotary frequencies are divided one by one, which a config.json cannot say");
  }
};

/// Of transformers 5's layout, "rope_parameters", and of the older one, "rope_theta" and "rope_scaling". Where there
/// are both, transformers reads the older one.
void read_rotary(const JsonField& json, LlamaOptions& o) {
  refuse_partial(json);
  const double base = json.optional("rope_theta", 10000.0, kPositive);
  std::optional<BaseAndScaling> read;
  for (const char* const key : {"rope_parameters", "rope_scaling"}) {
    const auto rotary = json.find(key);
    if (!rotary || rotary->members().empty()) continue;
    BaseAndScaling one = read_one(*rotary, base, o.sequence);
    const auto written = [](const BaseAndScaling& of) { return std::visit(RotaryJson{}, of.scaling); };
    if (read && (read->base != one.base || written(*read) != written(one))) {
      rotary->fail(
          "its rope_scaling and its rope_parameters differ, and programs differ in which one they read; remove one of "
          "them "
          "there");
    }
    read = std::move(one);
  }
  o.rotary.base = read ? read->base : base;
  if (read) o.rotary.scaling = read->scaling;
}

}  // namespace

std::string llama_json(const LlamaOptions& o, at::ScalarType dtype, const std::vector<std::int64_t>& ends) {
  OrderedJson rotary = std::visit(RotaryJson{}, o.rotary.scaling);
  // Versions before 5 read these two, later ones the third.
  const OrderedJson scaling = std::holds_alternative<NoScaling>(o.rotary.scaling) ? OrderedJson() : rotary;
  rotary["rope_theta"] = o.rotary.base;
  const OrderedJson json = {{"architectures", {"LlamaForCausalLM"}},
                            {"model_type", "llama"},
                            {"hidden_size", o.width},
                            {"intermediate_size", o.inner_width},
                            {"num_hidden_layers", o.layers},
                            {"num_attention_heads", o.heads},
                            {"num_key_value_heads", o.key_heads},
                            {"head_dim", o.rotary.width},
                            {"vocab_size", o.vocabulary},
                            {"max_position_embeddings", o.sequence},
                            {"rms_norm_eps", o.norm_epsilon},
                            {"rope_theta", o.rotary.base},
                            {"rope_scaling", scaling},
                            {"rope_parameters", rotary},
                            {"eos_token_id", ends.empty() ? OrderedJson() : OrderedJson(ends)},
                            {"hidden_act", "silu"},
                            {"attention_bias", false},
                            {"mlp_bias", false},
                            {"tie_word_embeddings", o.tied},
                            {"dtype", dtype == at::kBFloat16 ? "bfloat16" : "float32"}};
  return json.dump(2) + "\n";
}

LlamaOptions llama_options_of_json(const JsonField& json) {
  refuse_unknown(json);
  const auto count = [&](const char* key) { return json.required<std::int64_t>(key, kDimension); };
  LlamaOptions o;
  o.layers = count("num_hidden_layers");
  o.width = count("hidden_size");
  o.inner_width = count("intermediate_size");
  o.heads = count("num_attention_heads");
  o.key_heads = json.optional("num_key_value_heads", o.heads, kDimension);
  o.vocabulary = count("vocab_size");
  o.sequence = json.optional("max_position_embeddings", std::int64_t{2048}, kDimension);
  o.norm_epsilon = json.optional("rms_norm_eps", 1e-6, kNotNegative);
  o.rotary.width = json.optional("head_dim", o.width / o.heads, kDimension);
  o.tied = json.optional("tie_word_embeddings", false);
  read_rotary(json, o);
  return o;
}

}  // namespace snug::models
