// How prompts go on, and what becomes of one that the memory's limit has no room for.
#include "snug/train/continuations.h"

#include <gtest/gtest.h>

#include "snug/base/text_file.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/held_limit.h"
#include "snug/train/experiment.h"
#include "tests/base/scratch.h"
#include "tests/device/test_device.h"

namespace snug::train {
namespace {

TEST(Continuations, AreLeftOutWhereTheLimitHasNoRoom) {
  const auto folder = snug::testing::scratch("continuations/limit");
  write_text(folder / "text", std::string(2000, 'a'));
  Config config;
  config.model.blocks = 1;
  config.model.width = 256;
  config.model.heads = 4;
  config.model.sequence = 512;
  config.data.path = folder / "text";
  config.train.device = snug::testing::test_device().str();
  Experiment experiment(config);
  report::Progress silent = report::Progress::silent();
  const Prompts prompts{.texts = {"a", std::string(500, 'b')}, .tokens = 4};
  const auto texts = continuations(experiment, prompts, silent);
  ASSERT_EQ(texts.size(), 2U);
  EXPECT_TRUE(texts[0]);
  EXPECT_TRUE(texts[1]);
  auto& memory = testing::test_memory();
  memory.release_cached();
  const memory::HeldLimit held(memory, memory.stats().mapped + 256_KiB);  // 500 tokens take half of one MiB each time
  const auto fewer = continuations(experiment, prompts, silent);
  ASSERT_EQ(fewer.size(), 2U);
  EXPECT_EQ(fewer[0], texts[0]);
  EXPECT_FALSE(fewer[1]);
}

}  // namespace
}  // namespace snug::train
