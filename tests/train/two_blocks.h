#pragma once

#include <string>

#include "snug/base/text_file.h"
#include "snug/train/config.h"
#include "tests/base/scratch.h"
#include "tests/device/test_device.h"

namespace snug::train {

/// A small GPT with dropout and a text for it, in a scratch folder of that name, on the tests' device.
inline Config two_blocks(const std::string& name) {
  const auto folder = snug::testing::scratch("two_blocks/" + name);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::to_string(i * i) + " and ";
  write_text(folder / "text", text);
  Config c;
  c.model.blocks = 2;
  c.model.width = 64;
  c.model.heads = 2;
  c.model.sequence = 64;
  c.model.own.set("dropout", 0.1);
  c.data.path = folder / "text";
  c.train.batch = 4;
  c.train.device = snug::testing::test_device().str();
  return c;
}

}  // namespace snug::train
