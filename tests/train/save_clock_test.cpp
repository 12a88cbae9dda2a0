#include "snug/train/save_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "snug/train/interrupt.h"

namespace snug::train {
namespace {

Config with_folder(double interval) {
  Config config;
  config.output.folder = "out";
  config.state.interval = interval;
  return config;
}

bool asks(const SaveClock& clock) {
  forget_save_request();
  clock.ask_if_due();
  const bool asked = save_requested();
  forget_save_request();
  return asked;
}

void wait_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

TEST(SaveClock, TrainsTenTimesAsLongAsTheLastSaveTook) {
  SaveClock clock(with_folder(1e-9));
  clock.start();
  EXPECT_TRUE(asks(clock));
  clock.begin_save();
  wait_seconds(0.3);
  clock.end_save();
  EXPECT_FALSE(asks(clock));
  wait_seconds(3.5);
  EXPECT_TRUE(asks(clock));
}

TEST(SaveClock, AsksOnlyWhereTheConfigurationSaysSo) {
  const auto asks_with = [](const Config& config) {
    SaveClock clock(config);
    clock.start();
    return asks(clock);
  };
  EXPECT_FALSE(asks_with(with_folder(3600)));
  EXPECT_FALSE(asks_with(with_folder(0)));
  Config config = with_folder(1e-9);
  config.output.folder.clear();
  EXPECT_FALSE(asks_with(config)) << "there is no folder to save in";
  config = with_folder(1e-9);
  config.state.every = 100;
  EXPECT_FALSE(asks_with(config)) << "state.every alone says when";
  config.given.insert("state.interval");
  EXPECT_TRUE(asks_with(config));
}

}  // namespace
}  // namespace snug::train
