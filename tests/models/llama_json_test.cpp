// A model's config.json: rotary embeddings against transformers' rope utils, in numbers that make_references.py wrote.
#include "snug/models/llama_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "snug/base/json_field.h"
#include "snug/base/text_file.h"
#include "tests/base/fault.h"

namespace snug::models {
namespace {

using nlohmann::json;
using snug::testing::fault;
using ::testing::HasSubstr;

const json& references() {
  static const json all = json::parse(read_text(std::filesystem::path(SNUG_TESTS) / "models" / "yarn.json"));
  return all;
}

LlamaOptions options_of(const json& config) {
  const JsonFile file = JsonFile::parsed(config, {.name = "config.json"});
  return llama_options_of_json(file.root());
}

/// Cosines and sines of position 1, one after the other.
std::vector<float> first_turn(const RotaryOptions& options) {
  const RotaryTable table = rotary_table(options, {1, 1}, at::kCPU);
  const at::Tensor both = at::cat({table.cosines, table.sines}, 1).contiguous();
  return {both.const_data_ptr<float>(), both.const_data_ptr<float>() + both.numel()};
}

std::vector<float> first_turn(const json& reference) {
  const double amplitude = reference["amplitude"];
  std::vector<float> both;
  for (const auto of : {+[](double x) { return std::cos(x); }, +[](double x) { return std::sin(x); }}) {
    for (int half = 0; half < 2; ++half) {
      for (const double turn : reference["turns"]) both.push_back(static_cast<float>(of(turn) * amplitude));
    }
  }
  return both;
}

TEST(LlamaJson, ReadsAllOfYarnAsTransformersDoes) {
  constexpr float kRounding = 1e-6F;  // of fp32 numbers about 1
  std::set<std::vector<float>> different;
  for (const auto& [name, reference] : references().items()) {
    const LlamaOptions options = options_of(reference["config"]);
    const std::vector<float> expected = first_turn(reference);
    EXPECT_THAT(first_turn(options.rotary), ::testing::Pointwise(::testing::FloatNear(kRounding), expected)) << name;
    different.insert(expected);
    // And what is written of it means the same.
    const LlamaOptions again = options_of(json::parse(llama_json(options, at::kFloat, {})));
    EXPECT_EQ(first_turn(again.rotary), first_turn(options.rotary)) << name;
  }
  EXPECT_EQ(different.size(), references().size() - 1) << "an mscale alone does nothing; all others do";
}

TEST(LlamaJson, SettingsOfRotaryEmbeddingsThatAreNotKnownAreRefused) {
  json config = references()["plain"]["config"];
  const auto refused = [&](const char* key, const json& value) {
    json other = config;
    other["rope_parameters"][key] = value;
    return fault([&] { (void)options_of(other); });
  };
  EXPECT_THAT(refused("mrope_section", {1, 2}), HasSubstr("its rotary embeddings have mrope_section, which is not"));
  EXPECT_THAT(refused("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(refused("truncate", "no"), HasSubstr("truncate is \"no\""));
  EXPECT_EQ(refused("partial_rotary_factor", 1.0), "none");
  EXPECT_EQ(refused("finetuned", true), "none");
  config["partial_rotary_factor"] = 0.25;
  EXPECT_THAT(fault([&] { (void)options_of(config); }), HasSubstr("partial_rotary_factor is 0.25"));
}

TEST(LlamaJson, TwoStatementsOfRotaryEmbeddingsMustBeOne) {
  json config = references()["plain"]["config"];
  const json scaling = {{"rope_type", "linear"}, {"factor", 2.0}};
  config["rope_scaling"] = json::object();
  EXPECT_EQ(fault([&] { (void)options_of(config); }), "none");
  config["rope_scaling"] = scaling;
  EXPECT_THAT(fault([&] { (void)options_of(config); }), HasSubstr("its rope_scaling and its rope_parameters differ"));
  config["rope_parameters"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(fault([&] { (void)options_of(config); }), "none");
  config["rope_parameters"]["rope_theta"] = 5e5;
  EXPECT_THAT(fault([&] { (void)options_of(config); }), HasSubstr("its rope_scaling and its rope_parameters differ"));
}

TEST(LlamaJson, DynamicScalingBeginsBehindTheModelsOwnLength) {
  json config = references()["plain"]["config"];
  config["max_position_embeddings"] = 4096;
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 2.0}, {"original_max_position_embeddings", 1024}};
  EXPECT_EQ(std::get<DynamicScaling>(options_of(config).rotary.scaling).trained_length, 4096);
}

}  // namespace
}  // namespace snug::models
