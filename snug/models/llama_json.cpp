#include "snug/models/llama_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "snug/base/errors.h"

namespace snug::models {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kLargest = std::int64_t{1} << 32;  // of a dimension

class Reader {
 public:
  Reader(std::string_view text, std::string_view name)
      : json_(Json::parse(text, nullptr, /*allow_exceptions=*/false)), name_(name) {
    if (!json_.is_object()) fail("it is no JSON object");
  }

  LlamaOptions read() const {
    if (const std::string kind = text(json_, "model_type", ""); kind != "llama") {
      fail("its model_type is \"{}\", and the known one is llama", kind);
    }
    for (const char* biased : {"attention_bias", "mlp_bias"}) {
      if (json_.contains(biased) && json_[biased] == true) fail("it has {}, which is not known", biased);
    }
    if (const double dropout = number(json_, "attention_dropout", 0.0); dropout != 0) {
      fail("its attention_dropout is {}, and none is known; set it to 0 there", dropout);
    }
    if (const std::string activation = text(json_, "hidden_act", "silu"); activation != "silu") {
      fail("its hidden_act is {}, and the known one is silu", activation);
    }
    LlamaOptions o;
    o.layers = count("num_hidden_layers");
    o.width = count("hidden_size");
    o.inner_width = count("intermediate_size");
    o.heads = count("num_attention_heads");
    o.key_heads = count("num_key_value_heads", o.heads);
    o.vocabulary = count("vocab_size");
    o.sequence = count("max_position_embeddings", 2048);
    o.norm_epsilon = number(json_, "rms_norm_eps", 1e-6);
    o.rotary.width = count("head_dim", o.width / o.heads);
    o.tied = json_.contains("tie_word_embeddings") && json_["tie_word_embeddings"] == true;
    read_rotary(o);
    return o;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw UsageError(fmt::format("model: {}: {}", name_, fmt::format(format, std::forward<Args>(args)...)));
  }

  std::string text(const Json& from, const char* key, const char* otherwise) const {
    if (!from.contains(key) || from[key].is_null()) return otherwise;
    if (!from[key].is_string()) fail("its {} is no text", key);
    return from[key].get<std::string>();
  }
  double number(const Json& from, const char* key, std::optional<double> otherwise = std::nullopt) const {
    if (!from.contains(key) || from[key].is_null()) {
      if (!otherwise) fail("it has no {}", key);
      return *otherwise;
    }
    if (!from[key].is_number()) fail("its {} is no number", key);
    return from[key].get<double>();
  }
  std::int64_t whole(const Json& from, const char* key, std::optional<std::int64_t> otherwise = std::nullopt) const {
    if (!from.contains(key) || from[key].is_null()) {
      if (!otherwise) fail("it has no {}", key);
      return *otherwise;
    }
    if (!from[key].is_number_integer() || from[key] < 1 || from[key] > kLargest) {
      fail("its {} is {}, which is no number from 1 to {}", key, from[key].dump(), kLargest);
    }
    return from[key].get<std::int64_t>();
  }
  std::int64_t count(const char* key, std::optional<std::int64_t> otherwise = std::nullopt) const {
    return whole(json_, key, otherwise);
  }

  /// Both of transformers 5's layout, "rope_parameters", and of the older one, "rope_theta" and "rope_scaling".
  void read_rotary(LlamaOptions& o) const {
    const Json none = Json::object();
    const auto object = [&](const char* key) -> const Json& {
      return json_.contains(key) && json_[key].is_object() ? json_[key] : none;
    };
    const Json& r = json_.contains("rope_parameters") ? object("rope_parameters") : object("rope_scaling");
    o.rotary.base = number(r, "rope_theta", number(json_, "rope_theta", 10000.0));
    const std::string kind = text(r, "rope_type", text(r, "type", "default").c_str());
    const auto trained = [&] { return whole(r, "original_max_position_embeddings", o.sequence); };
    if (kind == "default") {
      o.rotary.scaling = NoScaling{};
    } else if (kind == "linear") {
      o.rotary.scaling = LinearScaling{number(r, "factor")};
    } else if (kind == "dynamic") {
      o.rotary.scaling = DynamicScaling{number(r, "factor"), trained()};
    } else if (kind == "llama3") {
      o.rotary.scaling = Llama3Scaling{number(r, "factor"), number(r, "low_freq_factor"), number(r, "high_freq_factor"),
                                       whole(r, "original_max_position_embeddings")};
    } else if (kind == "yarn") {
      std::optional<double> attention;
      if (r.contains("attention_factor") && !r["attention_factor"].is_null()) attention = number(r, "attention_factor");
      o.rotary.scaling =
          YarnScaling{number(r, "factor"), number(r, "beta_fast", 32), number(r, "beta_slow", 1), trained(), attention};
    } else {
      fail("its rope_type is \"{}\"; known are default, linear, dynamic, llama3 and yarn", kind);
    }
  }

  Json json_;
  std::string_view name_;
};

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
    return json;
  }
  OrderedJson operator()(const DividedFrequencies&) const {
    throw UsageError("model: its rotary frequencies are divided one by one, which a config.json cannot say");
  }
};

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

LlamaOptions llama_options_of_json(std::string_view json, std::string_view name) { return Reader(json, name).read(); }

}  // namespace snug::models
