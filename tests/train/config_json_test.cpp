// Configurations out of JSON, as a run keeps its own.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "snug/train/config.h"
#include "tests/base/fault.h"

namespace snug::train {
namespace {

TEST(ConfigFromJson, RefusesAnIntegerOfMoreThan63BitsAndCallsNoOtherSo) {
  nlohmann::ordered_json large, number;
  large["train"]["seed"] = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(snug::testing::fault([&] { (void)config_from_json(large, "x.json"); }),
            "x.json: train.seed must be of type integer, but is 18446744073709551615 (an integer beyond 63 bits)");
  number["model"]["kind"] = 3U;
  EXPECT_EQ(snug::testing::fault([&] { (void)config_from_json(number, "x.json"); }),
            "x.json: model.kind must be of type string, but is 3 (number); write \"3\"");
}

}  // namespace
}  // namespace snug::train
