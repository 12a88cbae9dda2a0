#include "snug/base/module_scope.h"

#include <gtest/gtest.h>

namespace snug {
namespace {

TEST(ModuleScope, AParameterIsOfTheModulesAroundIt) {
  for (const char* module : {"classifier", "bert.classifier", "bert"}) {
    EXPECT_TRUE(is_of_module("bert.classifier.weight", module)) << module;
  }
  EXPECT_FALSE(is_of_module("bert.classifier.weight", "weight")) << "its own name is no module's";
  EXPECT_FALSE(is_of_module("bert.classifier.weight", "class"));
  EXPECT_FALSE(is_of_module("weight", "weight"));
  EXPECT_FALSE(is_of_module("bert.weight", ""));
}

}  // namespace
}  // namespace snug
