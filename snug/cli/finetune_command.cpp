#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/cli/command.h"
#include "snug/cli/output.h"
#include "snug/data/tokenizer.h"
#include "snug/models/generation.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/saved_model.h"
#include "snug/train/trainer.h"

namespace snug::cli {
namespace {

struct Prompts {
  std::vector<std::string> texts;
  std::int64_t tokens = 40;
};

/// Greedy continuations, so that a difference is the training's.
std::vector<std::string> continuations(train::Experiment& experiment, const Prompts& prompts) {
  std::vector<std::string> texts;
  for (const std::string& prompt : prompts.texts) {
    const models::GenerationOptions options{
        .tokens = prompts.tokens, .below = experiment.tokenizer().size(), .ends = experiment.ends()};
    const std::vector<data::TokenId> given = experiment.tokenizer().encode(prompt);
    texts.push_back(
        data::decode_after(experiment.tokenizer(), given, experiment.language_model().generate(given, options)));
  }
  return texts;
}

void print_continuations(const char* when, const Prompts& prompts, const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) print(fmt::format("{}: {}│{}\n", when, prompts.texts[i], texts[i]));
  flush_output();
}

}  // namespace

void add_finetune(CLI::App& app, Action& action) {
  auto options = std::make_shared<ConfigOptions>();
  auto prompts = std::make_shared<Prompts>();
  CLI::App* command =
      app.add_subcommand("finetune", "Train a pretrained model inside a memory budget, with adapters (LoRA) or whole");
  add_config_options(*command, *options);
  command->add_option("--prompt", prompts->texts, "Show how this text goes on before and after; may be repeated")
      ->take_all()
      ->allow_extra_args(false)
      ->type_name("TEXT");
  command->add_option("--tokens", prompts->tokens, "Tokens to show of each")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}))
      ->capture_default_str();
  auto resume = std::make_shared<bool>(false);
  command->add_flag("--resume", *resume, "Go on from the newest training state in output.folder");
  command->callback([options, prompts, resume, &action] {
    action = [options, prompts, resume] {
      const train::Config config = configuration(*options);
      if (config.model.path.empty()) {
        throw UsageError("finetune: model.path is not set; name the files of a pretrained model, or use snug train");
      }
      const train::InterruptScope interruptible;
      report::Progress progress = report::Progress::for_terminal();
      std::vector<std::string> before, after;
      std::optional<double> validation_before;
      std::string saved;
      train::TrainOptions how;
      if (*resume) how.start = train::Start::Resume;
      how.before = [&](train::Experiment& experiment) {
        if (!config.output.folder.empty()) train::check_can_save(experiment);  // and not after the last step
        before = continuations(experiment, *prompts);
        validation_before = experiment.validation_loss();
        if (!options->json) print_continuations("before", *prompts, before);
      };
      how.after = [&](train::Experiment& experiment, const train::TrainResult&) {
        if (!config.output.folder.empty()) saved = train::save_trained(experiment, config.output.folder);
        after = continuations(experiment, *prompts);
      };
      const train::TrainResult result = train::train(config, progress, how);
      if (options->json) {
        nlohmann::ordered_json json = to_json(result);
        json["saved"] = saved;
        json["validation_loss_before"] =
            validation_before ? nlohmann::ordered_json(*validation_before) : nlohmann::ordered_json();
        json["continuations"] = nlohmann::ordered_json::array();
        for (std::size_t i = 0; i < after.size(); ++i) {
          json["continuations"].push_back({{"prompt", prompts->texts[i]}, {"before", before[i]}, {"after", after[i]}});
        }
        print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
      } else {
        print(summary("snug finetune", result, validation_before));
        print_continuations("before", *prompts, before);
        print_continuations("after", *prompts, after);
        if (!saved.empty()) print(fmt::format("saved in {}\n", saved));
      }
      return result.interrupted ? kInterrupted : 0;
    };
  });
}

}  // namespace snug::cli
