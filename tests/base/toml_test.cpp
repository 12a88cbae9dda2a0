#include "snug/base/toml.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/base/fault.h"

namespace snug {
namespace {

namespace fs = std::filesystem;

using testing::fault;

TEST(ParseToml, KeepsTypesAndTheOrderOfTheFile) {
  const auto json = parse_toml(
      "zebra = 1\n[train]\nsteps = 100\nrate = 3e-4\nname = \"a\"\non = true\nlist = [1, \"two\"]\n[data]\npath = ''\n",
      "x.toml");
  EXPECT_EQ(json.dump(), R"({"zebra":1,"train":{"steps":100,"rate":0.0003,"name":"a","on":true,"list":[1,"two"]},)"
                         R"("data":{"path":""}})");
  EXPECT_TRUE(json["train"]["steps"].is_number_integer());
  EXPECT_TRUE(json["train"]["rate"].is_number_float());
}

TEST(ParseToml, TurnsDatesIntoStrings) {
  EXPECT_EQ(parse_toml("day = 2024-05-06\ntime = 07:08:09", "x.toml").dump(),
            R"({"day":"2024-05-06","time":"07:08:09"})");
}

TEST(ParseToml, NamesFileLineAndColumnOfAMistake) {
  const std::string message = fault([] { parse_toml("[train]\nsteps = = 5\n", "run.toml"); });
  EXPECT_EQ(message.rfind("run.toml:2:9: not valid TOML: ", 0), 0U) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(ParseToml, RefusesAKeyGivenTwice) {
  EXPECT_NE(fault([] { parse_toml("a = 1\na = 2\n", "run.toml"); }).find("run.toml:2:"), std::string::npos);
}

TEST(ReadToml, ReadsAFile) {
  const fs::path path = fs::path(::testing::TempDir()) / "snug_read_toml.toml";
  std::ofstream(path) << "[model]\nwidth = 64\n";
  EXPECT_EQ(read_toml(path)["model"]["width"], 64);
  fs::remove(path);
}

TEST(ReadToml, SaysWhyAFileCannotBeRead) {
  EXPECT_NE(fault([] { read_toml("no/such.toml"); }).find("no/such.toml: No such file or directory"),
            std::string::npos);
  EXPECT_NE(fault([] { read_toml(::testing::TempDir()); }).find("is a folder"), std::string::npos);
}

TEST(ParseTomlValue, ReadsEveryType) {
  EXPECT_EQ(parse_toml_value("100").dump(), "100");
  EXPECT_EQ(parse_toml_value(" 1_000 ").dump(), "1000");
  EXPECT_EQ(parse_toml_value("3e-4").dump(), "0.0003");
  EXPECT_EQ(parse_toml_value("false").dump(), "false");
  EXPECT_EQ(parse_toml_value("\"quoted text\"").dump(), "\"quoted text\"");
  EXPECT_EQ(parse_toml_value("[1, 2]").dump(), "[1,2]");
  EXPECT_TRUE(std::isnan(parse_toml_value("nan").get<double>()));
}

TEST(ParseTomlValue, TakesBareWordsAsStrings) {
  for (const std::string word : {"400MiB", "60%", "data/tiny shakespeare.txt", "greedy", "a#b", "1\nb = 2", "07:08:09",
                                 "2024-05-06 07:08:09", "99999999999999999999"}) {
    EXPECT_EQ(parse_toml_value(word), word);
  }
  EXPECT_EQ(parse_toml_value("  "), "");
}

TEST(ParseTomlValue, RefusesWhatIsOpenedAndNotClosed) {
  for (const std::string text : {"\"abc", "'abc", "[1, 2", "{a = 1"}) {
    EXPECT_NE(fault([&] { parse_toml_value(text); }).find("value: " + text + " is not a valid TOML value"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace snug
