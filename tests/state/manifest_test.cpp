#include "snug/state/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "snug/base/damaged_file.h"

namespace snug::state {
namespace {

using ::testing::HasSubstr;

Manifest small() {
  Manifest m;
  m.step = 120;
  m.metric = 2.5;
  m.files.emplace("weights.safetensors", Manifest::File{1234, hash_of("abc")});
  return m;
}

std::string signed_text(const std::string& line) { return line + "\n" + hash_of(line) + "\n"; }

std::string manifest_fault(const std::string& text) {
  try {
    (void)parse_manifest(text, "f");
  } catch (const DamagedFile& error) {
    return error.what();
  }
  return "none";
}

TEST(Manifest, IsReadAsItWasWritten) {
  EXPECT_EQ(parse_manifest(format_manifest(small()), "f"), small());
  Manifest empty;
  EXPECT_EQ(parse_manifest(format_manifest(empty), "f"), empty);
  Manifest infinite = small();  // JSON has no such number
  infinite.metric = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(parse_manifest(format_manifest(infinite), "f").metric);
}

TEST(Manifest, EveryFlippedBitIsFound) {
  const std::string text = format_manifest(small());
  for (std::size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(manifest_fault(flipped), "none") << bit;
  }
  for (std::size_t length = 0; length < text.size(); ++length)
    EXPECT_NE(manifest_fault(text.substr(0, length)), "none");
}

TEST(Manifest, WhatIsSignedAndWrongIsRefused) {
  EXPECT_THAT(manifest_fault(signed_text("[]")), HasSubstr("it is []; it must be an object"));
  EXPECT_THAT(manifest_fault(signed_text("{")), HasSubstr("it is no JSON"));
  EXPECT_THAT(manifest_fault(signed_text(R"({"snug_training_state":2})")),
              HasSubstr("version 2, and this program reads 1"));
  EXPECT_THAT(manifest_fault(signed_text(R"({"snug_training_state":1,"step":-1})")), HasSubstr("its step is -1"));
  EXPECT_THAT(manifest_fault(signed_text(R"({"snug_training_state":1,"step":1e3})")),
              HasSubstr("its step is 1000.0; it must be an integer"));
  EXPECT_THAT(manifest_fault(signed_text(R"({"snug_training_state":1,"step":18446744073709551615})")),
              HasSubstr("its step is 18446744073709551615"));
  const auto with_file = [](const std::string& files) {
    return manifest_fault(signed_text(R"({"snug_training_state":1,"step":1,"files":)" + files + "}"));
  };
  EXPECT_THAT(with_file("[]"), HasSubstr("its files is []; it must be an object"));
  EXPECT_THAT(with_file(R"({"../x":{"bytes":1,"xxh3_128":"0"}})"), HasSubstr("is no file's name"));
  EXPECT_THAT(with_file(R"({"..":{"bytes":1,"xxh3_128":"0"}})"), HasSubstr("is no file's name"));
  EXPECT_THAT(with_file(R"({"x":{"bytes":1,"xxh3_128":"0"}})"),
              HasSubstr("its files.x.xxh3_128 is \"0\"; it must be 32 hexadecimal digits"));
  EXPECT_THAT(with_file(R"({"x":{"bytes":-1,"xxh3_128":"0123456789abcdef0123456789abcdef"}})"),
              HasSubstr("its files.x.bytes is -1"));
  EXPECT_EQ(with_file(R"({"x":{"bytes":1,"xxh3_128":"0123456789abcdef0123456789abcdef"}})"), "none");
}

}  // namespace
}  // namespace snug::state
