#include "snug/base/gguf_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/fault.h"

namespace snug {
namespace {

using ::testing::ElementsAre;

const GgufMetadata& some() {
  static const GgufMetadata metadata{{"count", std::uint64_t{300}},
                                     {"shift", std::int64_t{-3}},
                                     {"rate", 0.5},
                                     {"on", true},
                                     {"word", "two"},
                                     {"sizes", std::vector<std::int64_t>{1, 2}}};
  return metadata;
}

GgufFields fields() { return {some(), {.name = "reading: f.gguf", .cure = "convert it again"}}; }

template <class Read>
std::string said_of_fields(const Read& read) {
  return snug::testing::fault([&] { (void)read(fields()); });
}

TEST(GgufFields, ReadWhatIsAskedFor) {
  EXPECT_EQ(fields().required<std::int64_t>("count"), 300);
  EXPECT_EQ(fields().required<double>("count"), 300) << "a number may be whole";
  EXPECT_EQ(fields().required<int>("shift"), -3);
  EXPECT_EQ(fields().required<double>("rate"), 0.5);
  EXPECT_TRUE(fields().required<bool>("on"));
  EXPECT_EQ(fields().required<std::string>("word"), "two");
  EXPECT_THAT(fields().required<std::vector<std::int64_t>>("sizes"), ElementsAre(1, 2));
  EXPECT_EQ(fields().optional("missing", 7), 7);
  EXPECT_EQ(fields().find<bool>("missing"), std::nullopt);
}

TEST(GgufFields, NameFileKeyValueAndWhatItMustBe) {
  EXPECT_EQ(
      said_of_fields([](const GgufFields& f) { return f.optional("word", 7); }),
      "reading: f.gguf: its word is \"two\"; it must be an integer from -2147483648 to 2147483647; convert it again");
  EXPECT_EQ(said_of_fields([](const GgufFields& f) { return f.required<std::uint8_t>("count"); }),
            "reading: f.gguf: its count is 300; it must be an integer from 0 to 255; convert it again");
  EXPECT_EQ(said_of_fields([](const GgufFields& f) { return f.required<std::int64_t>("shift", kNotNegative); }),
            "reading: f.gguf: its shift is -3; it must be an integer, at least 0; convert it again");
  EXPECT_EQ(said_of_fields([](const GgufFields& f) { return f.required<std::vector<std::string>>("sizes"); }),
            "reading: f.gguf: its sizes is a list of 2; it must be a list, each text; convert it again");
  EXPECT_EQ(said_of_fields([](const GgufFields& f) { return f.required<bool>("missing"); }),
            "reading: f.gguf: it has no missing, which must be true or false; convert it again");
}

}  // namespace
}  // namespace snug
