#include <fmt/format.h>

#include <charconv>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/base/read_at.h"
#include "snug/cli/command.h"
#include "snug/cli/output.h"
#include "snug/data/bos_eos.h"
#include "snug/data/streamed_text.h"
#include "snug/data/tokenizer_format.h"
#include "snug/memory/device_memory.h"
#include "snug/models/generation.h"
#include "snug/train/config_rules.h"
#include "snug/train/language_model.h"
#include "snug/train/model_family.h"
#include "snug/train/pretrained.h"
#include "snug/train/run_device.h"

namespace snug::cli {
namespace {

struct Options {
  train::Config config;
  std::string prompt;
  std::int64_t tokens = 64;
  double temperature = 0, top_p = 1;
  std::uint64_t seed = 0;
  bool json = false;
};

models::Sampling sampling_of(const Options& o) {
  if (o.temperature == 0 && (o.top_p < 1 || o.seed != 0)) {
    throw UsageError(
        "generate: --top-p and --seed are for drawing, and at --temperature 0 the likeliest token is taken; set "
        "--temperature above 0, or leave them out");
  }
  if (o.temperature == 0) return models::Greedy{};
  return models::Nucleus{o.temperature, o.top_p};
}

/// Refuses everything but a number that `holds`; comparisons refuse what is not a number.
template <class Rule>
CLI::Validator number(const std::string& rule, Rule holds) {
  return {[rule, holds](const std::string& text) {
            double value = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            const bool whole = error == std::errc() && end == text.data() + text.size();
            return whole && holds(value) ? std::string() : fmt::format("\"{}\" is not a number {}", text, rule);
          },
          ""};
}

std::string standard_input() { return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()}; }

int generate(const Options& o) {
  if (o.config.model.path.empty()) throw UsageError("generate: --model is empty; name a GGUF file or a folder");
  const c10::Device device = train::device_of(o.config);
  const train::ModelFiles files(o.config.model.path);
  const train::ModelFamily& family = train::family_of(files);
  train::Config config = o.config;
  config.model.kind = family.name;
  const auto pretrained = family.open(files);
  const auto tokenizer = train::make_tokenizer(config, pretrained.get());
  const auto model = pretrained->model(config.model);
  if (!config.lora.adapter.empty()) train::load_adapter(model->module(), config.lora.adapter);
  model->module().to(device);
  const std::string prompt = o.prompt == "-" ? standard_input() : o.prompt;
  const models::GenerationOptions options{.tokens = o.tokens,
                                          .sampling = sampling_of(o),
                                          .seed = o.seed,
                                          .below = tokenizer->size(),
                                          .ends = pretrained->ends()};
  bool begun = false;  // nothing is shown of a prompt that is refused
  const auto show = [&](const std::string& bytes) {
    if (o.json) return;
    if (!std::exchange(begun, true)) print(prompt);
    print(bytes);
    flush_output();  // nobody waits for the rest of a text that cannot be shown
  };
  const double started = monotonic_seconds();
  const std::vector<data::TokenId> given = data::encode_prompt(*tokenizer, prompt);
  data::StreamedText so_far(*tokenizer, given);
  const auto show_more = [&](const std::string& more) {
    if (!more.empty()) show(more);
  };
  const auto made = model->generate(given, options, [&](data::TokenId token) { show_more(so_far.add(token)); });
  show_more(so_far.rest());
  const double seconds = monotonic_seconds() - started;
  if (!o.json) {
    show("\n");
    return 0;
  }
  const nlohmann::ordered_json json = {{"prompt", prompt},
                                       {"text", data::decode_after(*tokenizer, given, made)},
                                       {"tokens", made},
                                       {"seconds", seconds},
                                       {"measured_peak_bytes", memory::device_memory(device).stats().allocated_peak}};
  print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Continue a text with a pretrained model, adapted or not");
  command->add_option("--model", o->config.model.path, "GGUF file, or folder as transformers saves it")
      ->required()
      ->type_name("PATH");
  command->add_option("--adapter", o->config.lora.adapter, "Folder of an adapter as PEFT or snug finetune saves it")
      ->type_name("FOLDER");
  command
      ->add_option_function<std::string>(
          "--device",
          [o](const std::string& name) {
            read_at("--device", [&] { return memory::device_named(name); });
            o->config.train.device = name;
          },
          "Where it is decoded: cpu, or an accelerator such as cuda:0")
      ->type_name("DEVICE")
      ->default_str(o->config.train.device);
  constexpr train::rules::OneOf<train::BaseWeights> weights{};
  command
      ->add_option_function<std::string>(
          "--weights",
          [o](const std::string& name) { o->config.model.weights = *train::choice_named<train::BaseWeights>(name); },
          "How weights are kept: " + train::rules::describe(weights))
      ->check(CLI::IsMember(train::rules::words_of(weights)))
      ->default_str(std::string(train::word(o->config.model.weights)));
  command
      ->add_option("--tokenizer", o->config.data.tokenizer,
                   "auto: the model's own; or " + data::tokenizer_format_names())
      ->capture_default_str();
  command->add_option("--prompt", o->prompt, "The text; - reads it from standard input")->required()->type_name("TEXT");
  command
      ->add_option("--tokens", o->tokens, "Tokens at most; fewer where the model ends the text, or takes no longer one")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1000000}))
      ->capture_default_str();
  command->add_option("--temperature", o->temperature, "0: always the likeliest token")
      ->check(number("from 0 to 100", [](double value) { return value >= 0 && value <= 100; }))
      ->capture_default_str();
  command->add_option("--top-p", o->top_p, "Draw from the likeliest tokens that have this share together")
      ->check(number("above 0 and up to 1", [](double value) { return value > 0 && value <= 1; }))
      ->capture_default_str();
  command->add_option("--seed", o->seed, "Of what is drawn")->capture_default_str();
  command->add_flag("--json", o->json, "Print one JSON object on standard output and nothing else there");
  command->callback([o, &action] {
    action = [o] {
      refuse_launcher();
      return generate(*o);
    };
  });
}

}  // namespace snug::cli
