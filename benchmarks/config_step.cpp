// Training steps of a configuration on demand, for what measures them against others step by step.
//
// Usage: config_step CONFIG [SECTION.KEY=VALUE...]. First it writes one JSON object, then it runs a whole step
// (forward, backward, clipping, update) for every line of input and answers with its seconds, and in the end it writes
// another JSON object. Without memory.budget steps are plain, without a session. Peaks are of all that is counted:
// weights, optimizer, batch, step.
#include <torch/torch.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/train/choose.h"
#include "snug/train/planned_experiment.h"
#include "snug/train/training_step.h"

namespace {

using snug::train::Config;

/// The choices of memory.allow are made, as the command makes them.
Config configured(int argc, char** argv, nlohmann::ordered_json& made) {
  Config config = snug::train::load_config(argv[1]);
  for (int i = 2; i < argc; ++i) snug::train::set_key(config, argv[i]);
  snug::train::validate(config);
  snug::train::warm_up(config);
  snug::report::Progress progress = snug::report::Progress::silent();
  const snug::train::Chosen chosen = snug::train::choose(config, progress);
  made["choices"] = to_json(chosen.choices);
  return chosen.config;
}

int run(int argc, char** argv) {
  nlohmann::ordered_json made;
  const Config config = configured(argc, argv, made);
  snug::train::Experiment experiment(config);
  snug::train::TrainingStep step(experiment);
  std::optional<snug::Session> session;
  if (config.memory.budget) {
    session.emplace(snug::train::plan_session(experiment, snug::train::Kinds::Training));
    made["unplanned_peak_bytes"] = session->plan().unplanned_peak;
    made["predicted_peak_bytes"] = session->predicted_peak();
  }
  std::cout << made << std::endl;

  auto& memory = snug::memory::device_memory(c10::kCPU);
  memory.reset_peak();
  double loss = 0;
  std::int64_t steps = 0;
  for (std::string line; std::getline(std::cin, line); ++steps) {
    const auto batch = experiment.train_batch(steps);
    const double started = snug::monotonic_seconds();
    const at::Tensor result = session ? step.backward(*session, batch, steps) : step.backward_plain(batch, steps);
    step.clip();
    step.update(steps);
    std::cout << snug::monotonic_seconds() - started << std::endl;
    loss = result.item<double>();
  }
  nlohmann::ordered_json end = {{"peak_bytes", memory.stats().allocated_peak}, {"loss", loss}};
  if (session) end["replayed_ops"] = step.last().replayed_ops;
  std::cout << end << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "config_step: name a configuration\n";
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const snug::Error& error) {
    std::cerr << "config_step: " << error.what() << "\n";
    return error.exit_code();
  }
}
