#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "snug/cli/command.h"
#include "snug/cli/output.h"
#include "snug/plan/plan_file.h"
#include "snug/train/interrupt.h"
#include "snug/train/trainer.h"

namespace snug::cli {
void add_train(CLI::App& app, Action& action) {
  auto options = std::make_shared<ConfigOptions>();
  auto anomaly = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("train", "Train a model inside a memory budget");
  add_config_options(*command, *options);
  command->add_flag("--detect-anomaly", *anomaly,
                    "When the loss or a gradient is not finite, name the first operator that made it so");
  auto plan_path = std::make_shared<std::string>();
  command
      ->add_option("--plan", *plan_path, "Follow this plan (see snug plan --out), and its budget unless one is given")
      ->type_name("PLAN.json");
  auto resume = std::make_shared<bool>(false);
  command->add_flag("--resume", *resume, "Go on from the newest training state in output.folder");
  command->callback([options, anomaly, plan_path, resume, &action] {
    action = [options, anomaly, plan_path, resume] {
      train::Config config = configuration(*options);
      config.train.detect_anomaly = config.train.detect_anomaly || *anomaly;
      train::TrainOptions how;
      if (!plan_path->empty()) {
        refuse_setting(*options, "memory.strategy", "--plan is a plan already");
        how.plan = plan::read_plan(*plan_path);
      }
      if (*resume) how.start = train::Start::Resume;
      const train::InterruptScope interruptible;
      how.team = train::Team::of_launcher(config);
      report::Progress progress = progress_of(how.team);
      const train::TrainResult result = train::train(config, progress, how);
      if (!how.team.is_first()) {  // the first tells
      } else if (options->json) {
        print(to_json(result).dump() + "\n");
      } else {
        print(summary("snug train", result));
      }
      return result.interrupted ? kInterrupted : 0;
    };
  });
}

}  // namespace snug::cli
