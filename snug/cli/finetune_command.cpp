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
#include "snug/memory/out_of_budget.h"
#include "snug/train/continuations.h"
#include "snug/train/experiment.h"
#include "snug/train/interrupt.h"
#include "snug/train/saved_model.h"
#include "snug/train/trainer.h"

namespace snug::cli {
namespace {

using Texts = std::vector<std::optional<std::string>>;

/// What a run is shown by, beside its result.
struct Shown {
  Texts before, after;                      // how the prompts go on
  std::optional<double> validation_before;  // loss
  std::string saved;                        // path
};

void print_continuations(const char* when, const train::Prompts& prompts, const Texts& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i]) print(fmt::format("{}: {}│{}\n", when, prompts.texts[i], *texts[i]));
  }
  flush_output();
}

train::TrainResult finetuned(const train::Config& config, const train::Prompts& prompts, const ConfigOptions& options,
                             train::Start start, const train::Team& team, Shown& shown) {
  report::Progress progress = progress_of(team);
  train::TrainOptions how;
  how.start = start;
  how.team = team;
  const auto save = [&](train::Experiment& experiment, const train::TrainResult&) {
    if (!config.output.folder.empty()) shown.saved = train::save_trained(experiment, config.output.folder);
  };
  how.after = save;
  if (!team.is_first()) return train::train(config, progress, how);
  how.before = [&](train::Experiment& experiment) {
    if (!config.output.folder.empty()) train::check_can_save(experiment);  // and not after the last step
    if (!experiment.parameter_parts().empty() && !prompts.texts.empty())
      progress.note(
          "prompts are not continued where each process has a part of the model; snug generate does so with what is "
          "saved");
    shown.before = train::continuations(experiment, prompts, progress);
    try {
      // The other processes of a team are not asked for their part.
      if (team.size() == 1) shown.validation_before = experiment.validation_loss();
    } catch (const OutOfBudget&) {
      // Which the plan will not fit either, and that says what it takes.
    }
    if (!options.json) print_continuations("before", prompts, shown.before);
  };
  how.after = [&](train::Experiment& experiment, const train::TrainResult& result) {
    save(experiment, result);
    if (!shown.saved.empty()) progress.note(fmt::format("what was trained is in {}", shown.saved));
    shown.after = train::continuations(experiment, prompts, progress);
  };
  return train::train(config, progress, how);
}

template <class Value>
nlohmann::ordered_json value_or_null(const std::optional<Value>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

void print_json(const train::TrainResult& result, const train::Prompts& prompts, const Shown& shown) {
  nlohmann::ordered_json json = to_json(result);
  json["saved"] = shown.saved;
  json["validation_loss_before"] = value_or_null(shown.validation_before);
  json["continuations"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < shown.after.size(); ++i) {
    json["continuations"].push_back({{"prompt", prompts.texts[i]},
                                     {"before", value_or_null(shown.before[i])},
                                     {"after", value_or_null(shown.after[i])}});
  }
  print(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace

void add_finetune(CLI::App& app, Action& action) {
  auto options = std::make_shared<ConfigOptions>();
  auto prompts = std::make_shared<train::Prompts>();
  CLI::App* command =
      app.add_subcommand("finetune", "Train a pretrained model inside a memory budget, with adapters (LoRA) or whole");
  add_config_options(*command, *options);
  CLI::Option* prompt =
      command->add_option("--prompt", prompts->texts, "Show how this text goes on before and after; may be repeated")
          ->take_all()
          ->allow_extra_args(false)
          ->type_name("TEXT");
  command->add_option("--tokens", prompts->tokens, "Tokens to show of each")
      ->needs(prompt)
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000}))
      ->capture_default_str();
  auto resume = std::make_shared<bool>(false);
  command->add_flag("--resume", *resume, "Go on from the newest training state in output.folder");
  command->callback([options, prompts, resume, &action] {
    action = [options, prompts, resume] {
      if (unchecked_configuration(*options).model.path.empty()) {
        throw UsageError("finetune: model.path is not set; name the files of a pretrained model, or use snug train");
      }
      const train::Config config = configuration(*options);
      const train::InterruptScope interruptible;
      const train::Team team = train::Team::of_launcher(config);
      Shown shown;
      const train::TrainResult result =
          finetuned(config, *prompts, *options, *resume ? train::Start::Resume : train::Start::Anew, team, shown);
      if (!team.is_first()) {  // the first tells
      } else if (options->json) {
        print_json(result, *prompts, shown);
      } else {
        print(summary("snug finetune", result, shown.validation_before));
        print_continuations("after", *prompts, shown.after);
        if (!shown.saved.empty()) print(fmt::format("saved in {}\n", shown.saved));
      }
      return result.interrupted ? kInterrupted : 0;
    };
  });
}

}  // namespace snug::cli
