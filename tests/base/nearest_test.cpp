#include "snug/base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace snug {
namespace {

const std::vector<std::string> kKeys = {"batch", "steps", "seed", "validate_every", "validation_batches"};

TEST(NearestName, FindsOneLetterLeftOutAddedOrReplaced) {
  EXPECT_EQ(nearest_name("btch", kKeys), "batch");
  EXPECT_EQ(nearest_name("stepss", kKeys), "steps");
  EXPECT_EQ(nearest_name("sead", kKeys), "seed");
}

TEST(NearestName, CountsTwoSwappedNeighboursAsOneEdit) {
  const std::vector<std::string> names = {"abxy", "abdce"};
  // One swap against two replacements.
  EXPECT_EQ(nearest_name("abcde", names), "abdce");
  EXPECT_EQ(nearest_name("stpes", kKeys), "steps");
}

TEST(NearestName, AllowsMoreEditsInLongNames) {
  EXPECT_EQ(nearest_name("validaton_batchs_", kKeys), "validation_batches");
}

TEST(NearestName, IsNoneWhenTooFar) {
  EXPECT_FALSE(nearest_name("momentum", kKeys).has_value());
  EXPECT_FALSE(nearest_name("steps_to_run", kKeys).has_value());
}

TEST(NearestName, IsNoneWhenNothingIsShared) {
  const std::vector<std::string> names = {"lr"};
  EXPECT_FALSE(nearest_name("x", names).has_value());
  EXPECT_FALSE(nearest_name("", names).has_value());
}

TEST(NearestName, TakesTheFirstOfEquals) {
  const std::vector<std::string> names = {"beta1", "beta2"};
  EXPECT_EQ(nearest_name("beta", names), "beta1");
}

TEST(NearestName, IsTheShortestThatBeginsSo) {
  const std::vector<std::string> names = {"mlp_tile", "adam8bit_paged", "adam8bit", "adafactor"};
  EXPECT_EQ(nearest_name("adam8", names), "adam8bit");
  EXPECT_EQ(nearest_name("adafa", names), "adafactor");
  EXPECT_FALSE(nearest_name("ad", names).has_value()) << "too short to tell";
  EXPECT_FALSE(nearest_name("adam16", names).has_value());
}

TEST(NearestName, IsNoneWithoutNames) { EXPECT_FALSE(nearest_name("steps", {}).has_value()); }

TEST(NearestName, FindsAnExactName) { EXPECT_EQ(nearest_name("seed", kKeys), "seed"); }

}  // namespace
}  // namespace snug
