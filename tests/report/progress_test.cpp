#include "snug/report/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

#include "snug/report/table.h"

namespace snug::report {
namespace {

/// A file in memory that what is under test writes to.
class Capture {
 public:
  Capture() : file_(open_memstream(&text_, &size_)) {}
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    std::fclose(file_);
    std::free(text_);
  }

  [[nodiscard]] std::FILE* file() const { return file_; }
  [[nodiscard]] std::string text() const {
    std::fflush(file_);
    return {text_, size_};
  }
  [[nodiscard]] std::ptrdiff_t lines() const { return std::ranges::count(text(), '\n'); }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

StepStatus status_at(std::int64_t step, double seconds = 0) {
  return {.step = step,
          .steps = 100,
          .loss = 2.34567,
          .tokens_per_second = 12345,
          .peak = 212_MiB,
          .budget = 400_MiB,
          .seconds = seconds,
          .validation_loss = std::nullopt};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ProgressLine, ShowsEverythingWhereThereIsRoom) {
  StepStatus status = status_at(50);
  status.validation_loss = 2.5;
  const std::string line = progress_line(status, 83.0, 160, Colour::None);
  EXPECT_EQ(line,
            "▕████████████            ▏  50/100  loss 2.3457  val 2.5000  12.3k tok/s  "
            "peak 212.0 / 400.0 MiB  ▕███▏  ▏  ETA 1:23");
}

TEST(ProgressLine, NeverIsWiderThanTheTerminal) {
  StepStatus status = status_at(50);
  status.validation_loss = 2.5;
  for (const Colour colour : {Colour::None, Colour::Ansi}) {
    for (int columns = 0; columns <= 200; ++columns) {
      EXPECT_LE(display_width(progress_line(status, 1e6, columns, colour)), columns);
    }
  }
}

TEST(ProgressLine, KeepsStepLossAndPeakLongest) {
  EXPECT_EQ(progress_line(status_at(50), 83.0, 50, Colour::None), "50/100  loss 2.3457  peak 212.0 / 400.0 MiB");
  EXPECT_EQ(progress_line(status_at(50), 83.0, 10, Colour::None), "50/100");
}

TEST(ProgressLine, ColoursTheGaugeByHowFullTheBudgetIs) {
  StepStatus status = status_at(50);
  EXPECT_TRUE(contains(progress_line(status, 1.0, 160, Colour::Ansi), "\x1b[32m███▏\x1b[0m"));
  status.peak = 350_MiB;
  EXPECT_TRUE(contains(progress_line(status, 1.0, 160, Colour::Ansi), "\x1b[33m"));
  status.peak = 400_MiB;
  EXPECT_TRUE(contains(progress_line(status, 1.0, 160, Colour::Ansi), "\x1b[31m██████\x1b[0m"));
  EXPECT_FALSE(contains(progress_line(status, 1.0, 160, Colour::None), "\x1b["));
}

TEST(ProgressLine, NamesBothUnitsWhereTheyDiffer) {
  StepStatus status = status_at(1);
  status.budget = 2_GiB;
  EXPECT_TRUE(contains(progress_line(status, std::nullopt, 160, Colour::None), "peak 212.0 MiB / 2.0 GiB"));
  status.budget = std::nullopt;
  EXPECT_TRUE(contains(progress_line(status, std::nullopt, 160, Colour::None), "peak 212.0 MiB"));
}

TEST(ProgressLine, TakesStrangeNumbers) {
  StepStatus status = status_at(200);
  status.loss = std::nan("");
  status.budget = 0;
  const std::string line = progress_line(status, INFINITY, 160, Colour::None);
  EXPECT_TRUE(contains(line, "loss nan"));
  status.steps = 0;
  status.loss = 1e30;
  EXPECT_TRUE(contains(progress_line(status, -5.0, 160, Colour::None), "loss 1.000e+30"));
}

TEST(PlainProgress, PrintsTheFirstTheLastAndEveryTenthOfTheRun) {
  const Capture capture;
  Progress progress = Progress::plain(capture.file());
  for (int step = 1; step <= 100; ++step) progress.update(status_at(step, step * 0.01));
  progress.finish();
  EXPECT_EQ(capture.lines(), 11);  // 1, 11, 21, ..., 91, 100
  EXPECT_TRUE(contains(capture.text(), "step 1/100  loss 2.3457  12.3k tok/s  peak 212.0 / 400.0 MiB\n"));
  EXPECT_TRUE(contains(capture.text(), "step 11/100"));
  EXPECT_TRUE(contains(capture.text(), "step 100/100"));
  EXPECT_FALSE(contains(capture.text(), "\x1b"));
}

TEST(PlainProgress, PrintsAboutEveryTenSecondsOfASlowRun) {
  const Capture capture;
  Progress progress = Progress::plain(capture.file());
  for (int step = 1; step <= 8; ++step) progress.update(status_at(step, step * 5.0));
  EXPECT_EQ(capture.lines(), 4);  // 1, 3, 5, 7
  EXPECT_TRUE(contains(capture.text(), "step 3/100  loss 2.3457  12.3k tok/s  peak 212.0 / 400.0 MiB  ETA 8:05\n"));
}

TEST(PlainProgress, PrintsAValidationOnceAndAtOnce) {
  const Capture capture;
  Progress progress = Progress::plain(capture.file());
  progress.update(status_at(1));
  StepStatus status = status_at(2);
  status.validation_loss = 3.25;
  progress.update(status);
  EXPECT_TRUE(contains(capture.text(), "step 2/100  loss 2.3457  validation 3.2500"));
  progress.update(status_at(20));
  EXPECT_EQ(capture.text().find("validation"), capture.text().rfind("validation"));
}

TEST(PlainProgress, PrintsTheStepThatARunWasStoppedAt) {
  const Capture capture;
  {
    Progress progress = Progress::plain(capture.file());
    progress.update(status_at(1));
    progress.update(status_at(2));
    progress.note("interrupted");
  }
  EXPECT_TRUE(contains(capture.text(), "interrupted\nstep 2/100"));
  EXPECT_EQ(capture.lines(), 3);
}

TEST(InPlaceProgress, RedrawsOneLineAndEndsItOnce) {
  const Capture capture;
  {
    Progress progress = Progress::in_place(capture.file());
    progress.update(status_at(1));
    progress.update(status_at(100));
    progress.finish();
    progress.finish();
  }
  EXPECT_EQ(capture.lines(), 1);
  EXPECT_EQ(capture.text().rfind("\r\x1b[K", 0), 0U);
  EXPECT_TRUE(contains(capture.text(), "100/100"));
}

TEST(InPlaceProgress, PutsANoteAboveTheBar) {
  const Capture capture;
  Progress progress = Progress::in_place(capture.file());
  progress.update(status_at(1));
  const std::size_t before = capture.text().size();
  progress.note("planned again");
  const std::string added = capture.text().substr(before);
  EXPECT_EQ(added.rfind("\r\x1b[Kplanned again\n\r\x1b[K", 0), 0U);
  EXPECT_TRUE(contains(added, "1/100"));
}

TEST(InPlaceProgress, DoesNotDrawEveryOneOfManyFastSteps) {
  const Capture capture;
  Progress progress = Progress::in_place(capture.file());
  for (int i = 0; i < 10000; ++i) progress.update(status_at(1));
  EXPECT_LT(capture.text().size(), 500000U);
}

TEST(InPlaceProgress, HonoursNoColor) {
  ::setenv("NO_COLOR", "1", 1);
  const Capture capture;
  Progress::in_place(capture.file()).update(status_at(1));
  ::unsetenv("NO_COLOR");
  EXPECT_FALSE(contains(capture.text(), "m█")) << capture.text();
  EXPECT_FALSE(contains(capture.text(), "\x1b[3"));
}

TEST(InPlaceProgress, GoesOnShowingTheLastValidation) {
  const Capture capture;
  ::setenv("NO_COLOR", "1", 1);
  Progress progress = Progress::in_place(capture.file());
  ::unsetenv("NO_COLOR");
  StepStatus status = status_at(1);
  status.budget = std::nullopt;
  status.validation_loss = 3.25;
  progress.update(status);
  status.step = 100;
  status.validation_loss = std::nullopt;
  progress.update(status);
  const std::string text = capture.text();
  EXPECT_TRUE(contains(text.substr(text.rfind('\r')), "val 3.2500"));
}

TEST(SilentProgress, ShowsNothing) {
  testing::internal::CaptureStderr();
  Progress progress = Progress::silent();
  progress.update(status_at(1));
  progress.note("hello");
  progress.finish();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Progress, ForATerminalIsPlainWhereStderrIsAFile) {
  testing::internal::CaptureStderr();
  Progress::for_terminal().update(status_at(100));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.rfind("step 100/100", 0), 0U) << text;
}

TEST(Progress, MovesWithoutFinishingTwice) {
  const Capture capture;
  {
    Progress first = Progress::in_place(capture.file());
    first.update(status_at(1));
    Progress second = std::move(first);
    second.update(status_at(100));
  }
  EXPECT_EQ(capture.lines(), 1);
}

}  // namespace
}  // namespace snug::report
