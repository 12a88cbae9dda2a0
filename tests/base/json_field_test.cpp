#include "snug/base/json_field.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "snug/base/damaged_file.h"
#include "snug/base/errors.h"
#include "tests/base/fault.h"

namespace snug {
namespace {

using snug::testing::fault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const FieldSource kSource{.name = "reading: f.json", .cure = "write it again"};

/// What is said of a text when it is read so.
template <class Read>
std::string said_of(const std::string& text, const Read& read) {
  return fault([&] {
    const JsonFile file(text, kSource);
    read(file.root());
  });
}

template <class T>
std::string said_of_value(const std::string& text, const Range& range = kAnyNumber) {
  return said_of("{\"key\":" + text + "}", [&](const JsonField& f) { (void)f.required<T>("key", range); });
}

TEST(JsonField, ReadsWhatIsAskedFor) {
  const JsonFile file(R"({"on": true, "word": "two", "half": 0.5, "whole": 3, "nothing": null, "list": [1, 2],
                          "inner": {"least": -9223372036854775808, "most": 18446744073709551615}})",
                      kSource);
  const JsonField f = file.root();
  EXPECT_TRUE(f.required<bool>("on"));
  EXPECT_EQ(f.required<std::string>("word"), "two");
  EXPECT_EQ(f.required<double>("half"), 0.5);
  EXPECT_EQ(f.required<double>("whole"), 3) << "a number may be whole";
  EXPECT_EQ(f.required<std::uint8_t>("whole"), 3);
  EXPECT_EQ(f.at("inner").required<std::int64_t>("least"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(f.at("inner").required<std::uint64_t>("most"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_THAT(f.required<std::vector<int>>("list"), ElementsAre(1, 2));
  EXPECT_EQ(f.optional("nothing", 7), 7) << "null is as good as missing";
  EXPECT_EQ(f.optional("missing", 7), 7);
  EXPECT_EQ(f.find("nothing"), std::nullopt);
  EXPECT_EQ(f.members().front().first, "half") << "by name";
  EXPECT_THAT(f.members(), SizeIs(7));
}

TEST(JsonField, NamesFileKeyValueAndWhatItMustBe) {
  EXPECT_EQ(said_of_value<bool>("1"), "reading: f.json: its key is 1; it must be true or false; write it again");
  EXPECT_EQ(said_of_value<std::string>("[1,{\"a\":2}]"),
            "reading: f.json: its key is [1,{\"a\":2}]; it must be text; write it again");
  EXPECT_EQ(said_of_value<double>("5", Range{.low = 0, .high = 2}),
            "reading: f.json: its key is 5; it must be a number, at least 0 and at most 2; write it again");
  EXPECT_EQ(said_of("{}", [](const JsonField& f) { (void)f.required<int>("key", kNotNegative); }),
            "reading: f.json: it has no key, which must be an integer, at least 0; write it again");
  EXPECT_EQ(
      said_of(R"({"a":[{"b c":{"d":"x"}}]})",
              [](const JsonField& f) { (void)f.at("a").at(0).at("b c").required<int>("d"); }),
      "reading: f.json: its a[0][\"b c\"].d is \"x\"; it must be an integer from -2147483648 to 2147483647; write it "
      "again");
  EXPECT_THAT(said_of(R"({"a":[1]})", [](const JsonField& f) { (void)f.at("a").at(1); }),
              HasSubstr("its a is [1]; it must be an array of 2 or more"));
  EXPECT_THAT(said_of("[1]", [](const JsonField& f) { (void)f.find("a"); }),
              HasSubstr("it is [1]; it must be an object"));
}

TEST(JsonField, RefusesWhatTheLibrarysGetWouldConvert) {
  EXPECT_EQ(nlohmann::json::parse("1.5").get<int>(), 1) << "without a word";
  for (const char* other : {"1.0", "1e30", "-1", "4294967296", "true", "\"1\"", "null", "[1]"}) {
    EXPECT_NE(said_of_value<std::uint32_t>(other), "none") << other;
  }
  EXPECT_NE(said_of_value<std::int64_t>("9223372036854775808"), "none");
  EXPECT_NE(said_of_value<std::uint64_t>("2.87413e+22"), "none");
  EXPECT_NE(said_of_value<bool>("0"), "none");
}

TEST(JsonField, TakesOneOfAFewWords) {
  constexpr std::array<std::pair<std::string_view, int>, 2> kWordsAndNumbers{{{"one", 1}, {"two", 2}}};
  const JsonFile file(R"({"key":"two"})", kSource);
  EXPECT_EQ(file.root().at("key").one_of(kWordsAndNumbers), 2);
  for (const char* other : {"\"three\"", "2"}) {
    EXPECT_THAT(said_of("{\"key\":" + std::string(other) + "}",
                        [&](const JsonField& f) { (void)f.at("key").one_of(kWordsAndNumbers); }),
                HasSubstr(std::string(other) + "; it must be one of \"one\", \"two\"; write it again"));
  }
}

TEST(JsonField, WhatIsShownIsShortOnOneLineAndUtf8) {
  const auto said = said_of_value<int>;
  EXPECT_THAT(said("\"x\\ny\"", kAnyNumber), HasSubstr("is \"x\\ny\";"));
  std::string umlauts;
  for (int i = 0; i < 1000; ++i) umlauts += "\xC3\xA4";
  const std::string message = said("\"a" + umlauts + "\"", kAnyNumber);
  EXPECT_LT(message.size(), 200U);
  EXPECT_NO_THROW((void)nlohmann::json(message).dump()) << "no character is cut in two";
  std::string numbers = "[0";
  for (int i = 0; i < 1000; ++i) numbers += ",1";
  EXPECT_LT(said(numbers + "]", kAnyNumber).size(), 250U);
  EXPECT_EQ(said_of("{\"a\\nb\":1}", [](const JsonField& f) { (void)f.required<std::string>("a\nb"); }).find('\n'),
            std::string::npos);
}

TEST(JsonField, DeepNestingIsToldOfAndNoCrash) {
  constexpr int kDepth = 200'000;
  const std::string deep = std::string(kDepth, '[') + std::string(kDepth, ']');
  EXPECT_THAT(said_of_value<int>(deep), HasSubstr("its key is [[[[[...]]]]]; it must be an integer"));
  const std::string innermost = said_of("{\"key\":" + deep + "}", [](const JsonField& f) {
    JsonField inner = f.at("key");
    while (inner.size() > 0) inner = inner.at(0);
    inner.refuse("a number");
  });
  EXPECT_THAT(innermost, HasSubstr("key[0][0]"));
  EXPECT_LT(innermost.size(), 400U);
}

TEST(JsonField, TextThatIsNoJsonIsRefusedInOurOwnWords) {
  for (const char* text : {"", "{", "{\"a\":1", "[1,]", "nan", "1e999", "\"\xff\""}) {
    EXPECT_EQ(fault([&] { const JsonFile file(text, kSource); }),
              "reading: f.json: it is no JSON, or not whole; write it again")
        << text;
  }
  EXPECT_THROW((void)JsonFile::parsed(nlohmann::json::parse("{", nullptr, false), kSource), UsageError);
}

TEST(JsonField, ThrowsWhatItsSourceDoes) {
  const JsonFile file("{}", {.name = "f", .raise = DamagedFile::raise});
  try {
    (void)file.root().at("a");
    FAIL();
  } catch (const DamagedFile& error) {
    EXPECT_STREQ(error.what(), "f: it has no a, which must be there");
  }
}

}  // namespace
}  // namespace snug
