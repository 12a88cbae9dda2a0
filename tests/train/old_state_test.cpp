// Training states of earlier versions go on.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "snug/base/text_file.h"
#include "snug/report/progress.h"
#include "snug/train/trainer.h"
#include "tests/base/scratch.h"
#include "tests/train/reference_files.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;

/// The state names its files as it was told them, from the folder that the run was in.
class InFolder {
 public:
  explicit InFolder(const fs::path& folder) : before_(fs::current_path()) { fs::current_path(folder); }
  ~InFolder() { fs::current_path(before_); }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;

 private:
  fs::path before_;
};

TrainOptions resumed() {
  TrainOptions options;
  options.start = Start::Resume;
  return options;
}

TEST(OldState, GoesOnAsIfThisVersionHadWrittenIt) {
  const fs::path folder = snug::testing::scratch("old_state"), state = "run/state/step-0000000003";
  fs::create_directories(folder / "run" / "state");
  fs::copy(kHere / "old_state" / "step-0000000003", folder / state);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::to_string(i * i) + " and ";
  write_text(folder / "text", text);
  const InFolder in(folder);
  Config config = load_config(kHere / "old_state" / "config.toml");
  report::Progress silent = report::Progress::silent();

  // As it is: the end of three steps.
  TrainResult result = train(config, silent, resumed());
  EXPECT_EQ(result.resumed_from, 3);
  EXPECT_NEAR(result.loss_last, 5.519383430480957, 1e-4);

  config.train.steps = 6;
  result = train(config, silent, resumed());
  EXPECT_EQ(result.resumed_from, 3);
  // What that version came to, and a run of this one alone: on another processor sums have another order.
  EXPECT_NEAR(result.loss_last, 5.500980854034424, 1e-4);
  EXPECT_NEAR(*result.validation_loss, 5.515828609466553, 1e-4);
  config.output.folder = "alone";
  EXPECT_NEAR(train(config, silent).loss_last, result.loss_last, 1e-4);
}

}  // namespace
}  // namespace snug::train
