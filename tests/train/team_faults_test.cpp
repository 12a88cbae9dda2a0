// Runs of several processes of which one fails: it is killed, hangs, throws, or has no memory left, at any time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "snug/memory/out_of_budget.h"
#include "snug/record/recording.h"
#include "snug/report/progress.h"
#include "snug/state/training_state.h"
#include "snug/train/trainer.h"
#include "tests/parallel/processes.h"
#include "tests/train/team_run.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using testing::Ended;
using testing::folder_of;
using ::testing::HasSubstr;
using testing::outcomes_of;
using testing::run_in;
using testing::six_steps;
using testing::weights_after;

constexpr std::int64_t kSteps = 24;

int trials_of(const char* variable, int otherwise) {
  const char* const asked = std::getenv(variable);
  return asked != nullptr ? std::atoi(asked) : otherwise;
}

/// Of two processes. What has the same bits has one name.
struct Layout {
  std::string name;
  ParallelConfig parallel;
};
const std::array<Layout, 5>& faulted_layouts() {
  static const std::array<Layout, 5> all = {{{"replicas", {}},
                                             {"replicas", {.shard = ShardOf::Gradients}},
                                             {"replicas", {.shard = ShardOf::Parameters}},
                                             {"parts", {.tensor = 2}},
                                             {"stages", {.pipeline = 2}}}};
  return all;
}
const Layout& layout_of_trial(int trial) {
  return faulted_layouts().at(static_cast<std::size_t>(trial) % faulted_layouts().size());
}

Config in_layout(const fs::path& folder, const ParallelConfig& parallel) {
  Config config = six_steps(folder, 0.1);
  config.model.width = 96;
  config.model.heads = 4;
  config.train.steps = kSteps;
  config.state.every = 1;
  config.parallel = parallel;
#ifdef __SANITIZE_ADDRESS__
  config.parallel.timeout = 60;
#else
  config.parallel.timeout = 6;  // a busy machine is no failure
#endif
  if (parallel.pipeline > 1) config.train.accumulate = 2;
  return config;
}

/// By the names of the layouts.
void run_undisturbed(const fs::path& folder) {
  for (const std::size_t i : {0U, 3U, 4U}) {
    const auto& [name, parallel] = faulted_layouts().at(i);
    const Config config = in_layout(folder, parallel);
    for (const Ended& ended : outcomes_of(2, [&, &to = name](const parallel::Launched&) {
           (void)run_in(config, folder / to, Team::of_launcher(config));
         }))
      EXPECT_EQ(ended.exit_code, 0) << ended.output;
  }
}

/// Ends, or stops, a process at any time: the others end too, and what is there is whole.
TEST(Team, GoesOnBitwiseAfterAnyOfThemIsKilledOrHangs) {
  const int kills = trials_of("SNUG_KILLS", 5);
  const fs::path folder = folder_of("killed");
  const auto run = [&](const fs::path& where, Start start, const ParallelConfig& parallel) {
    return [as = in_layout(folder, parallel), where, start](const parallel::Launched&) {
      (void)run_in(as, where, Team::of_launcher(as), start);
    };
  };
  run_undisturbed(folder);
  std::mt19937 random(7);  // NOLINT: the same each time
  int in_the_middle = 0;
  for (int i = 0; i < kills; ++i) {
    const fs::path where = folder / std::to_string(i);
    const auto victim = static_cast<std::size_t>(random() % 2);
    const int signal = random() % 4 == 0 ? SIGSTOP : SIGKILL;
    const std::int64_t step = 1 + static_cast<std::int64_t>(random() % 20);
    const auto later = std::chrono::microseconds(random() % 20'000);
    std::optional<std::chrono::steady_clock::time_point> when;
    bool sent = false;
    const auto hurt = [&](const std::vector<int>& ids) {
      if (!when && fs::exists(where / "state" / state::state_name(step)))
        when = std::chrono::steady_clock::now() + later;
      if (!sent && when && std::chrono::steady_clock::now() >= *when) {
        ::kill(ids[victim], signal);
        sent = true;
      } else if (sent && signal == SIGSTOP && ::kill(ids[1 - victim], 0) != 0) {
        ::kill(ids[victim], SIGKILL);  // the other has ended
      }
    };
    const auto& [name, parallel] = layout_of_trial(i);
    const auto ended = outcomes_of(2, run(where, Start::Anew, parallel), 40, hurt);
    const Ended& other = ended[1 - victim];
    EXPECT_EQ(other.signal, 0) << "it ends by itself and in time:\n" << other.output;
    in_the_middle += other.exit_code != 0 ? 1 : 0;
    for (const Ended& again : outcomes_of(2, run(where, Start::Resume, parallel)))
      EXPECT_EQ(again.exit_code, 0) << again.output;
    if (testing::is_started_by_test()) continue;
    EXPECT_TRUE(weights_after(where, kSteps) == weights_after(folder / name, kSteps)) << i << " " << name;
    fs::remove_all(where);
  }
  EXPECT_TRUE(2 * in_the_middle > kills || testing::is_started_by_test());
}

/// As long as it lives, and behind the operator of that number after a file is there: this thread's operators, replayed
/// ones too, find that one of them throws, or that there is no memory left.
class Fault {
 public:
  enum class Kind : std::uint8_t { Throws, TakesAllMemory };
  Fault(Kind kind, fs::path file, int operators)
      : kind_(kind), file_(std::move(file)), left_(operators), gate_({.around = [this](const auto&, const auto&) {
          count();
          return record::OperatorGate::Over();
        }}) {}

 private:
  void count() {
    if (is_over_ || (!is_near_ && !(is_near_ = fs::exists(file_))) || left_-- > 0) return;
    is_over_ = true;
    if (kind_ == Kind::Throws) throw std::runtime_error("what the test throws");
    for (std::int64_t bytes = 16 << 20; bytes >= 64;) {
      try {
        held_.push_back(torch::empty({bytes}, torch::kByte));
      } catch (const OutOfBudget&) {
        bytes /= 2;
      }
    }
  }

  Kind kind_;
  fs::path file_;
  int left_;
  bool is_near_ = false, is_over_ = false;
  std::vector<at::Tensor> held_;
  record::OperatorGate gate_;
};

/// At any operator of any process: the others end too and say why, and what is there is whole.
void goes_on_after(Fault::Kind kind, const std::string& name, unsigned seed) {
  const int faults = trials_of("SNUG_FAULTS", 5);
  const fs::path folder = folder_of(name);
  run_undisturbed(folder);
  std::mt19937 random(seed);
  int ended_early = 0;
  for (int i = 0; i < faults; ++i) {
    const auto& [of, parallel] = layout_of_trial(i);
    const fs::path where = folder / std::to_string(i);
    const auto victim = static_cast<std::size_t>(random() % 2);
    const fs::path after = where / "state" / state::state_name(1 + static_cast<std::int64_t>(random() % 20));
    const int operators = static_cast<int>(random() % 2000);
    Config config = in_layout(folder, parallel);
    config.memory.budget = plan::parse_budget("95%");
    const auto ended = outcomes_of(
        2,
        [&](const parallel::Launched& launched) {
          Config here = config;
          here.output.folder = where;
          report::Progress silent = report::Progress::silent();
          std::optional<Fault> fault;
          TrainOptions options;
          options.team = Team::of_launcher(here);
          options.before = [&](Experiment&) {
            if (static_cast<std::size_t>(launched.rank) == victim) fault.emplace(kind, after, operators);
          };
          (void)train(here, silent, options);
        },
        40);
    const Ended& hurt = ended[victim];
    const Ended& other = ended[1 - victim];
    for (const Ended& one : ended) EXPECT_EQ(one.signal, 0) << i << " " << of << "\n" << one.output;
    EXPECT_EQ(hurt.exit_code == 0, other.exit_code == 0) << i << " " << of << hurt.output << "\n" << other.output;
    if (other.exit_code != 0) {
      ++ended_early;
      EXPECT_THAT(other.output, AnyOf(HasSubstr("another process"), HasSubstr("another; what has failed says why"),
                                      HasSubstr("parallel: "), HasSubstr("does not fit: ")))
          << hurt.output;
      EXPECT_THAT(hurt.output, HasSubstr(kind == Fault::Kind::Throws ? "what the test throws" : "budget"));
    }
    const auto go_on = [&](const parallel::Launched&) {
      (void)run_in(config, where, Team::of_launcher(config), Start::Resume);
    };
    for (const Ended& again : outcomes_of(2, go_on)) EXPECT_EQ(again.exit_code, 0) << again.output;
    if (testing::is_started_by_test()) continue;
    EXPECT_TRUE(weights_after(where, kSteps) == weights_after(folder / of, kSteps)) << i << " " << of;
    fs::remove_all(where);
  }
  EXPECT_TRUE(2 * ended_early > faults || testing::is_started_by_test()) << ended_early << " of " << faults;
}

TEST(Team, GoesOnBitwiseAfterAnyOperatorOfOneHasThrown) { goes_on_after(Fault::Kind::Throws, "thrown", 8); }
TEST(Team, GoesOnBitwiseAfterOneHasNoMemoryLeftAtAnyTime) { goes_on_after(Fault::Kind::TakesAllMemory, "filled", 9); }

}  // namespace
}  // namespace snug::train
