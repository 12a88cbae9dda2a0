#include "snug/memory/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "snug/base/errors.h"
#include "tests/base/scratch.h"

namespace snug::memory {
namespace {

using nlohmann::json;
using snug::testing::scratch;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<json> lines_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

at::Tensor bytes(Bytes n) { return at::empty({n}, at::kByte); }

TEST(Monitor, HasThePeakOfEachStepToTheByte) {
  const auto file = scratch("monitor/steps") / "memory.jsonl";
  Monitor monitor({.file = file});
  auto& cpu = device_memory(c10::kCPU);
  const Bytes before = cpu.stats().allocated;
  const auto through = [&](Bytes n) {
    const Bytes taken = cpu.rounded(n);
    (void)bytes(n);
    return before + taken;
  };
  const Bytes first = through(40_MiB);
  EXPECT_TRUE(monitor.step(0).empty());
  EXPECT_EQ(monitor.step_peak(), first);
  const Bytes second = through(8_MiB);
  (void)monitor.step(1, 512);
  EXPECT_EQ(monitor.step_peak(), second);
  EXPECT_EQ(monitor.peak(), first);
  monitor.close();

  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0]["step"], 0);
  EXPECT_EQ(lines[0]["peak_bytes"], first);
  EXPECT_FALSE(lines[0].contains("loss_scale"));
  EXPECT_EQ(lines[1]["loss_scale"], 512);
  EXPECT_GE(lines[1]["seconds"], lines[0]["seconds"]);
  Bytes by_tag = 0;
  for (const auto& [tag, value] : lines[0]["by_tag"].items()) by_tag += value.get<Bytes>();
  EXPECT_EQ(by_tag, lines[0]["allocated_bytes"]);
  const json& resident = lines[0]["resident"];
  EXPECT_EQ(resident["tensors"].get<Bytes>() + resident["cached"].get<Bytes>() - resident["untouched"].get<Bytes>() +
                resident["others"].get<Bytes>(),
            lines[0]["resident_bytes"].get<Bytes>())
      << "nothing is left unexplained";
  EXPECT_GT(lines[0]["device_total_bytes"].get<Bytes>(), lines[0]["device_free_bytes"].get<Bytes>());
}

TEST(Monitor, WritesAlarmsAndReturnsThem) {
  const auto file = scratch("monitor/alarms") / "memory.jsonl";
  Monitor monitor({.file = file, .alarms = {.growth_steps = 4, .headroom = 0}});
  std::vector<at::Tensor> kept;
  std::vector<Alarm> alarms;
  for (std::int64_t i = 0; i < 5; ++i) {
    kept.push_back(bytes(2_MiB));
    for (const Alarm& alarm : monitor.step(i)) alarms.push_back(alarm);
  }
  ASSERT_EQ(alarms.size(), 1);
  EXPECT_EQ(alarms[0].kind, Alarm::Kind::Growth);
  monitor.close();
  const auto lines = lines_of(file);
  ASSERT_EQ(lines.size(), 6);
  EXPECT_EQ(lines[5]["alarm"], "growth");
  EXPECT_EQ(lines[5]["at_step"], 4);
  EXPECT_THAT(lines[5]["message"].get<std::string>(), HasSubstr("what tensors take grew by"));
}

TEST(Monitor, TakesSamplesOnAThreadOfItsOwn) {
  const auto file = scratch("monitor/samples") / "memory.jsonl";
  Monitor monitor({.interval = 1e-4, .file = file});
  while (monitor.timeline().size() < 20) (void)bytes(1_MiB);
  monitor.close();
  const auto timeline = monitor.timeline();
  for (std::size_t i = 1; i < timeline.size(); ++i) EXPECT_GE(timeline[i].first, timeline[i - 1].first);
  const auto lines = lines_of(file);
  ASSERT_GE(lines.size(), 20);
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["sample"], i);
}

TEST(Monitor, GoesOnWhereItsFileCannotBeWritten) {
  Monitor monitor({.interval = 1e-4, .file = "/dev/full"});
  const Bytes before = monitor.step_peak();
  (void)monitor.step(0);
  (void)bytes(4_MiB);
  (void)monitor.step(1);
  EXPECT_GT(monitor.step_peak(), before);
  EXPECT_THAT([&] { monitor.close(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("/dev/full"), HasSubstr("No space left"))));
  monitor.close();
}

TEST(Monitor, MayBeOneOfManyThatAreClosed) {
  std::vector<std::unique_ptr<Monitor>> all;
  for (int i = 0; i < 40; ++i) {
    all.push_back(std::make_unique<Monitor>());
    (void)all.back()->step(0);
    all.back()->close();
  }
  EXPECT_THAT([&] { (void)all.front()->step(1); }, ThrowsMessage<UsageError>(HasSubstr("step() after close()")));
}

TEST(Monitor, IsLeftAloneByAForkedProcess) {
  const auto file = scratch("monitor/fork") / "memory.jsonl";
  auto monitor = std::make_unique<Monitor>(MonitorOptions{.interval = 1e-5, .file = file});
  for (int i = 0; i < 20; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // what waits for the thread, which is not here, waits for ever
      monitor->close();
      const bool is_empty = monitor->timeline().empty();
      bool refused = false;
      try {
        (void)monitor->step(0);
      } catch (const UsageError&) {
        refused = true;
      }
      monitor.reset();
      ::_exit(is_empty && refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  (void)monitor->step(0);
  monitor->close();
  for (const json& line : lines_of(file)) EXPECT_TRUE(line.contains("sample") || line.contains("step"));
}

TEST(Monitor, ThePeakOfAStepIsThatOfTheProcessWhereOneThreadAllocatesAndAnotherFrees) {
  Monitor monitor;
  const Bytes before = monitor.peak();
  for (int i = 0; i < 50; ++i) {
    at::Tensor loaded;
    std::thread([&] { loaded = bytes(1_MiB); }).join();
  }
  (void)monitor.step(0);
  EXPECT_LT(monitor.step_peak() - before, 3_MiB);
}

TEST(Monitor, RefusesWhatCannotBe) {
  EXPECT_THAT([] { Monitor({.interval = -1}); }, ThrowsMessage<UsageError>(HasSubstr("an interval of -1;")));
  EXPECT_THAT([] { Monitor({.file = "/dev/null/memory.jsonl"}); }, ThrowsMessage<Error>(HasSubstr("Not a directory")));
}

TEST(MemorySample, SharesExplainAllOfTheResident) {
  EXPECT_EQ(shares_of(500, 100, 150), (ResidentShares{.tensors = 100, .cached = 50, .untouched = 0, .others = 350}));
  EXPECT_EQ(shares_of(120, 100, 150), (ResidentShares{.tensors = 100, .cached = 50, .untouched = 30, .others = 0}));
  const at::Tensor written = at::zeros({64 << 20}, at::kByte);
  const MemorySample now = sample(device_memory(c10::kCPU));
  EXPECT_GE(now.shares.tensors, 64_MiB);
  EXPECT_EQ(now.shares.tensors, now.allocated);
  EXPECT_GT(now.shares.others, 10_MiB) << "LibTorch's code";
}

}  // namespace
}  // namespace snug::memory
