#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <functional>
#include <string>

#include "snug/base/errors.h"
#include "tests/plan/random_graph.h"

namespace snug::plan::synthetic {

using Json = nlohmann::ordered_json;

/// The message of the UsageError that `load` throws, checked to be one line; "loaded" when it throws nothing.
inline std::string message_of(const std::function<void()>& load) {
  try {
    load();
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_FALSE(message.empty());
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
    return message;
  }
  return "loaded";
}

/// Replaces one random node of the document by junk, or removes it.
inline void damage(Json& json, Dice& dice) {
  Json* node = &json;
  Json* parent = nullptr;
  int child = 0;
  while (node->is_structured() && !node->empty() && (parent == nullptr || !dice.chance(10))) {
    parent = node;
    child = dice.roll(static_cast<int>(node->size()));
    node = &*std::next(node->begin(), child);
  }
  const std::vector<Json> junk{
      -1,     1,    -5,      1'000'000,     2'000'000'000,  9'000'000'000'000'000'000LL, 1e300, 0.5, "k",
      "x\ny", true, nullptr, Json::array(), Json::object(), Json::array({1, 2, 3, 4, 5})};
  if (parent != nullptr && dice.chance(30)) {
    parent->erase(std::next(parent->begin(), child));
  } else {
    *node = dice.pick(junk);
  }
}

}  // namespace snug::plan::synthetic
