#include "tests/train/team_run.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <utility>

#include "snug/base/text_file.h"
#include "snug/plan/budget_request.h"
#include "snug/report/progress.h"
#include "snug/state/training_state.h"
#include "tests/base/scratch.h"
#include "tests/parallel/processes.h"

namespace snug::testing {

namespace fs = std::filesystem;
using train::Config;
using train::Start;
using train::Team;
using train::TrainOptions;
using train::TrainResult;

fs::path folder_of(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("snug_team/" + name);
  if (is_started_by_test()) return folder;
  scratch("team/" + name);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::to_string(i * i) + " and ";
  write_text(folder / "text", text);
  return folder;
}

Config six_steps(const fs::path& folder, double dropout) {
  Config c;
  c.model.blocks = 3;
  c.model.width = 48;
  c.model.heads = 3;
  c.model.sequence = 64;
  c.model.own.set("dropout", dropout);
  c.data.path = folder / "text";
  c.train.batch = 8;
  c.train.steps = kSixSteps;
  c.train.threads = 1;  // sums are divided among them
  c.train.validate_every = 3;
  c.train.validation_batches = 3;
  c.optimizer.warmup_steps = 0;
  c.state.every = 3;
  c.state.last = 9;
  return c;
}

TrainResult run_in(Config config, const fs::path& folder, const Team& team, Start start) {
  config.output.folder = folder;
  report::Progress silent = report::Progress::silent();
  TrainOptions options;
  options.start = start;
  options.team = team;
  const int threads = at::get_num_threads();
  TrainResult result = train::train(config, silent, options);
  at::set_num_threads(threads);  // as other tests have it
  return result;
}

Team team_of(parallel::World& world, const train::TeamLayout& layout) {
  return Team(std::shared_ptr<parallel::World>(&world, [](auto*) {}), layout);
}

Lines lines_of(const fs::path& folder) {
  Lines steps;
  std::ifstream lines(folder / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::ordered_json::parse(line);
    if (json.contains("validation")) steps[json["validation"]["step"]].push_back(json["validation"]["loss"]);
    if (json.contains("step")) steps[json["step"]] = {json["loss"], json["gradient_norm"]};
  }
  return steps;
}

std::string weights_after(const fs::path& folder, std::int64_t steps) {
  return read_text(folder / "state" / state::state_name(steps) / "weights.safetensors");
}

std::string optimizer_after(const fs::path& folder, std::int64_t steps) {
  return read_text(folder / "state" / state::state_name(steps) / "optimizer.safetensors");
}

void is_one_process_with_as_many_micro_batches(int count, const std::string& name, const Config& config,
                                               std::int64_t accumulate, std::string_view budget) {
  const fs::path folder = fs::path(config.data.path).parent_path();
  in_processes(count, [&](parallel::World& world) {
    Config within = config;
    within.train.accumulate = accumulate;
    within.memory.budget = plan::parse_budget(budget);
    const TrainResult result = run_in(within, folder / "team", team_of(world));
    EXPECT_EQ(result.steps, kSixSteps);
    EXPECT_LE(result.memory.allocated_peak, result.plan.budget);
    EXPECT_EQ(fs::exists(folder / "team" / "metrics.jsonl"), true);
  });
  Config one = config;
  one.train.accumulate = count * accumulate;
  (void)run_in(one, folder / "one", Team());
  EXPECT_EQ(lines_of(folder / "team"), lines_of(folder / "one")) << name;
  EXPECT_EQ(lines_of(folder / "team").size(), kSixSteps);
  EXPECT_TRUE(weights_after(folder / "team", kSixSteps) == weights_after(folder / "one", kSixSteps)) << name;
  EXPECT_TRUE(optimizer_after(folder / "team", kSixSteps) == optimizer_after(folder / "one", kSixSteps)) << name;
}

}  // namespace snug::testing
