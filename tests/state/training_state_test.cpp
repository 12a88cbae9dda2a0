// Training state: saved, found again, and never half.
#include "snug/state/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "snug/base/damaged_file.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/state/state_writer.h"
#include "tests/base/scratch.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;
using snug::testing::scratch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two groups of tensors and a value, all telling of the same step.
struct Job {
  at::Tensor weight = torch::zeros({64, 32}), bias = torch::zeros({32}), moment = torch::zeros({64, 32});
  std::int64_t position = 0;
  TrainingState state;
  Job() {
    state.add_tensors("weights", {{"weight", weight}, {"bias", bias}});
    state.add_tensors("optimizer", {{"moment", moment}});
    state.add_value(
        "data", [this] { return nlohmann::json(position); },
        [this](const nlohmann::json& value) { position = value.get<std::int64_t>(); });
  }
  void be_at(std::int64_t step) {
    weight.fill_(static_cast<double>(step));
    bias.fill_(static_cast<double>(step) + 0.5);
    moment.fill_(static_cast<double>(-step));
    position = step;
  }
  [[nodiscard]] bool is_at(std::int64_t step) const {
    const auto s = static_cast<double>(step);
    return weight.eq(s).all().item<bool>() && bias.eq(s + 0.5).all().item<bool>() && moment.eq(-s).all().item<bool>() &&
           position == step;
  }
};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

std::optional<StateFolder> newest(const fs::path& folder, std::vector<std::string>* damaged = nullptr) {
  return newest_state(folder, [&](const fs::path&, const std::string& why) {
    if (damaged != nullptr) damaged->push_back(why);
  });
}

TEST(TrainingState, ComesBackAsItWas) {
  const fs::path folder = scratch("training_state/back");
  Job run;
  run.be_at(7);
  StateWriter writer(folder);
  writer.write(run.state, 7, {{"config.json", "{}"}});
  writer.set_metric(7, 1.25);
  EXPECT_THAT(names_in(folder), ElementsAre("step-0000000007"));
  EXPECT_THAT(names_in(folder / "step-0000000007"), ElementsAre("config.json", "manifest.json", "optimizer.safetensors",
                                                                "values.json", "weights.safetensors"));
  run.be_at(0);
  const auto found = newest(folder);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->manifest.step, 7);
  EXPECT_EQ(found->manifest.metric, 1.25);
  run.state.restore(found->path);
  EXPECT_TRUE(run.is_at(7));
}

TEST(TrainingState, TheLastAndTheBestStay) {
  const fs::path folder = scratch("training_state/retention");
  Job run;
  StateWriter writer(folder, {.last = 2, .best = 1});
  const std::vector<std::optional<double>> metrics{3.0, 1.0, 2.0, std::nullopt, 2.5};
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    writer.write(run.state, static_cast<std::int64_t>(i));
    if (metrics[i]) writer.set_metric(static_cast<std::int64_t>(i), *metrics[i]);
  }
  EXPECT_THAT(names_in(folder), ElementsAre(state_name(1), state_name(3), state_name(4)));
}

TEST(TrainingState, TheOneJustWrittenStaysAndDamagedOnesTakeNoPlace) {
  const fs::path folder = scratch("training_state/kept");
  Job job;
  StateWriter writer(folder, {.last = 1, .best = 0});
  writer.write(job.state, 100);
  fs::resize_file(folder / state_name(100) / "manifest.json", 10);
  writer.write(job.state, 50);
  writer.write(job.state, 60);
  EXPECT_THAT(names_in(folder), ElementsAre(state_name(60), state_name(100)));
}

TEST(TrainingState, WhatAnEarlierProcessOfTheSameNumberLeftIsRemoved) {
  const fs::path folder = scratch("training_state/number");
  fs::create_directory(folder / (state_name(3) + kUnfinished + std::to_string(::getpid())));
  fs::create_directory(folder / (state_name(4) + kUnfinished + "1"));  // of a process that lives
  StateWriter writer(folder);
  EXPECT_THAT(names_in(folder), ElementsAre(state_name(4) + kUnfinished + "1"));
}

TEST(TrainingState, AStateOfTheSameStepIsReplaced) {
  const fs::path folder = scratch("training_state/again");
  Job run;
  StateWriter writer(folder);
  run.be_at(1);
  writer.write(run.state, 5);
  run.be_at(2);
  writer.write(run.state, 5);
  EXPECT_THAT(names_in(folder), ElementsAre(state_name(5)));
  run.state.restore(newest(folder)->path);
  EXPECT_TRUE(run.is_at(2));
}

TEST(TrainingState, IsWrittenInTheBackgroundAsFarAsThereIsRoomForACopy) {
  const fs::path folder = scratch("training_state/background");
  Job run;
  StateWriter writer(folder);
  run.be_at(1);
  const auto& memory = memory::device_memory(c10::kCPU);
  const Bytes of_optimizer = memory.rounded(64 * 32 * 4);
  for (const Bytes room : {Bytes{0}, of_optimizer, of_optimizer + 1, Bytes{1} << 20}) {
    writer.write(run.state, 1, {}, room);
    const Bytes copied = writer.copied();
    EXPECT_LE(copied, room);
    EXPECT_EQ(copied, room == 0 ? 0 : room < Bytes{1} << 20 ? of_optimizer : 2 * of_optimizer + memory.rounded(32 * 4));
    run.be_at(2);  // the copy is what is saved
    writer.wait();
    run.state.restore(newest(folder)->path);
    EXPECT_TRUE(run.is_at(1)) << room;
  }
}

TEST(TrainingState, ACopyCountsTowardsTheBudgetUntilItIsWritten) {
  const fs::path folder = scratch("training_state/counted");
  TrainingState state;
  state.add_tensors("weights", {{"weight", torch::zeros({1 << 20})}});
  auto& memory = memory::device_memory(c10::kCPU);
  memory.reset_peak();
  const Bytes before = memory.stats().allocated;
  StateWriter writer(folder);
  writer.write(state, 1, {}, Bytes{8} << 20);
  writer.wait();
  EXPECT_GE(memory.stats().allocated_peak - before, Bytes{4} << 20);
  EXPECT_LT(memory.stats().allocated_peak - before, Bytes{5} << 20);
  EXPECT_EQ(memory.stats().allocated, before);
}

TEST(TrainingState, AFlippedBitInAnyFileIsFoundAndTheOlderStateTaken) {
  const fs::path folder = scratch("training_state/flipped");
  Job run;
  StateWriter writer(folder, {.last = 2});
  run.be_at(1);
  writer.write(run.state, 1);
  run.be_at(2);
  writer.write(run.state, 2);
  std::mt19937 random(1);
  int flipped = 0;
  for (const std::string& name : names_in(folder / state_name(2))) {
    const fs::path file = folder / state_name(2) / name;
    const auto bits = static_cast<std::int64_t>(fs::file_size(file)) * 8;
    // All of the small ones, and a sample of the others.
    const std::int64_t stride = std::max<std::int64_t>(1, bits / 1500);
    for (std::int64_t bit = static_cast<std::int64_t>(random()) % stride; bit < bits; bit += stride) {
      const auto flip = [&] {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(bit / 8);
        const char byte = static_cast<char>(stream.get() ^ (1 << (bit % 8)));
        stream.seekp(bit / 8);
        stream.put(byte);
      };
      flip();
      std::vector<std::string> damaged;
      const auto found = newest(folder, &damaged);
      ASSERT_TRUE(found);
      ASSERT_EQ(found->manifest.step, 1) << name << ", bit " << bit;
      ASSERT_EQ(damaged.size(), 1);
      ASSERT_THAT(damaged[0], HasSubstr(name));
      flip();
      ++flipped;
    }
  }
  EXPECT_GT(flipped, 5000);
  EXPECT_EQ(newest(folder)->manifest.step, 2);
}

TEST(TrainingState, WhatIsMissingOrTooShortIsNamed) {
  const fs::path folder = scratch("training_state/missing");
  Job run;
  StateWriter(folder).write(run.state, 3);
  const fs::path state = folder / state_name(3);
  fs::resize_file(state / "weights.safetensors", 100);
  std::vector<std::string> damaged;
  EXPECT_FALSE(newest(folder, &damaged));
  EXPECT_THAT(damaged, ElementsAre(HasSubstr("weights.safetensors: it has 100 bytes")));
  fs::remove(state / "weights.safetensors");
  damaged.clear();
  EXPECT_FALSE(newest(folder, &damaged));
  EXPECT_THAT(damaged, ElementsAre(HasSubstr("weights.safetensors: No such file")));
  fs::remove(state / "manifest.json");
  damaged.clear();
  EXPECT_FALSE(newest(folder, &damaged));
  EXPECT_THAT(damaged, ElementsAre(HasSubstr("manifest.json: No such file or directory")));
  EXPECT_FALSE(newest(folder / "nowhere"));
}

TEST(TrainingState, AnotherRunsStateIsRefusedWithAllThatDoesNotFit) {
  const fs::path folder = scratch("training_state/other");
  Job run;
  run.be_at(3);
  StateWriter(folder).write(run.state, 3);
  TrainingState other;
  at::Tensor weight = torch::ones({64, 16});
  other.add_tensors("weights", {{"weight", weight}, {"gain", torch::ones({2})}});
  other.add_tensors("ema", {{"weight", torch::ones({2})}});
  other.add_value(
      "scaler", [] { return nlohmann::json(); }, [](const nlohmann::json&) { FAIL(); });
  try {
    other.restore(folder / state_name(3));
    FAIL();
  } catch (const UsageError& error) {
    for (const char* part :
         {"6 do not fit", "there is no ema.safetensors", "weights.safetensors has weight as Float 64x32",
          "weights.safetensors has no gain", "weights.safetensors has bias", "optimizer.safetensors is of no use",
          "values.json has no scaler"}) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
  EXPECT_TRUE(weight.eq(1).all().item<bool>());
}

/// What has been registered since: parts with a default are what that makes them, and the others are missed by name.
TEST(TrainingState, AnOlderStateGoesOnWithTheDefaultsOfNewParts) {
  const fs::path folder = scratch("training_state/older");
  Job older;
  older.be_at(3);
  StateWriter(folder).write(older.state, 3);
  Job run;
  at::Tensor average = torch::zeros({64, 32});
  double scale = 0;
  run.state.add_tensors("ema", {{"weight", average}}, [&] { average.copy_(run.weight); });
  run.state.add_value(
      "scaler", [&] { return nlohmann::json(scale); },
      [&](const nlohmann::json& value) { scale = value.get<double>(); }, [&] { scale = 65536; });
  run.state.restore(folder / state_name(3));
  EXPECT_TRUE(run.is_at(3));
  EXPECT_TRUE(at::equal(average, run.weight)) << "made of what was restored";
  EXPECT_EQ(scale, 65536);

  // A state that has them gives them back.
  scale = 2;
  average.fill_(7);
  StateWriter(folder).write(run.state, 4);
  scale = 0;
  average.zero_();
  run.state.restore(folder / state_name(4));
  EXPECT_EQ(scale, 2);
  EXPECT_TRUE(average.eq(7).all().item<bool>());

  run.state.add_value(
      "sampler", [] { return nlohmann::json(1); }, [](const nlohmann::json&) { FAIL(); });
  try {
    run.state.restore(folder / state_name(3));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1 do not fit: values.json has no sampler"));
  }
}

/// Saves states 1, 2, 3, ... until it is killed. Background and not, and a step twice now and then.
[[noreturn]] void save_without_end(const fs::path& folder, std::int64_t first) {
  Job run;
  StateWriter writer(folder, {.last = 2, .best = 1});
  for (std::int64_t step = first;; ++step) {
    run.be_at(step);
    writer.write(run.state, step, {}, step % 3 == 0 ? 0 : Bytes{1} << 20);
    if (step % 5 == 0) writer.write(run.state, step);
    if (step % 2 == 0) writer.set_metric(step, static_cast<double>((step * 7919) % 101));
  }
}

/// Waits until so many names have come, gone or changed in a folder since it was made.
class Changes {
 public:
  explicit Changes(const fs::path& folder) : descriptor_(::inotify_init1(IN_CLOEXEC)) {
    EXPECT_GE(::inotify_add_watch(descriptor_, folder.c_str(), IN_CREATE | IN_MOVED_TO | IN_DELETE), 0);
  }
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;
  ~Changes() { ::close(descriptor_); }

  void wait_for(std::uint64_t changes) {
    alignas(inotify_event) std::array<char, 4096> events{};
    while (seen_ < changes) {
      const ssize_t bytes = ::read(descriptor_, events.data(), events.size());
      ASSERT_GT(bytes, 0);
      for (ssize_t offset = 0; offset < bytes; ++seen_) {
        offset += static_cast<ssize_t>(
            sizeof(inotify_event) + reinterpret_cast<inotify_event*>(&events[static_cast<std::size_t>(offset)])->len);
      }
    }
  }

 private:
  int descriptor_;
  std::uint64_t seen_ = 0;
};

TEST(TrainingState, KilledAtAnyMomentThereIsAWholeState) {
  constexpr int kTimes = 200;
  const fs::path folder = scratch("training_state/killed");
  std::mt19937 random(7);
  std::int64_t step = 0;
  int unfinished = 0;
  // On busy cores the child is seldom caught in the midst of a state: then as often as it takes.
  for (int i = 0; i < kTimes || (unfinished <= kTimes / 4 && i < 5 * kTimes); ++i) {
    Changes changes(folder);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_without_end(folder, step + 1);
    // A state in the making is begun, takes its name, or an old one goes; the child is then somewhere behind that.
    changes.wait_for(1 + random() % 12);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    for (const std::string& name : names_in(folder)) unfinished += name.find(kUnfinished) != std::string::npos;
    std::vector<std::string> damaged;
    const auto found = newest(folder, &damaged);
    EXPECT_THAT(damaged, IsEmpty());
    ASSERT_TRUE(found || step == 0);
    if (!found) continue;
    ASSERT_GE(found->manifest.step, step);
    step = found->manifest.step;
    Job run;
    run.state.restore(found->path);
    ASSERT_TRUE(run.is_at(step)) << step;
  }
  EXPECT_GT(step, kTimes);            // it had saved
  EXPECT_GT(unfinished, kTimes / 4);  // and was interrupted in the midst of it
  // What the dead have left is removed by the next one that writes.
  StateWriter writer(folder);
  for (const std::string& name : names_in(folder)) EXPECT_EQ(name.find(kUnfinished), std::string::npos) << name;
}

/// A limit on the size of files stands for a full disk.
TEST(TrainingState, AFullDiskLeavesTheLastState) {
  const fs::path folder = scratch("training_state/full");
  Job run;
  run.be_at(1);
  StateWriter writer(folder);
  writer.write(run.state, 1);
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  for (const rlim_t size : {10, 300, 4000, 8000}) {
    for (const Bytes room : {Bytes{0}, Bytes{1} << 20}) {
      const rlimit little{size, before.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
      std::string fault;
      try {
        writer.write(run.state, 2, {}, room);
        writer.wait();
      } catch (const Error& error) {
        fault = error.what();
      }
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
      EXPECT_THAT(fault, HasSubstr("File too large")) << size;
      EXPECT_THAT(names_in(folder), ElementsAre(state_name(1))) << size;
    }
  }
  writer.write(run.state, 3);  // goes on when there is room again
  EXPECT_EQ(newest(folder)->manifest.step, 3);
  run.state.restore(newest(folder)->path);
  EXPECT_TRUE(run.is_at(1));
}

}  // namespace
}  // namespace snug::state
