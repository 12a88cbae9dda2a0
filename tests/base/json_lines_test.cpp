#include "snug/base/json_lines.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "snug/base/errors.h"

namespace snug {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

class JsonLinesTest : public ::testing::Test {
 protected:
  ~JsonLinesTest() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path file() const { return folder_ / "deep" / "metrics.jsonl"; }
  [[nodiscard]] std::string text() const {
    std::ifstream stream(file());
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  fs::path folder_ = fs::path(::testing::TempDir()) / ("snug_metrics_" + std::to_string(::getpid()) + "_" +
                                                       ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(JsonLinesTest, WritesOneObjectALineAtOnceInNewFolders) {
  JsonLines writer(file());
  writer.write({{"step", 1}, {"loss", 2.5}});
  EXPECT_EQ(text(), "{\"step\":1,\"loss\":2.5}\n");
  writer.write({{"note", "two\nlines"}});
  EXPECT_EQ(text(), "{\"step\":1,\"loss\":2.5}\n{\"note\":\"two\\nlines\"}\n");
}

TEST_F(JsonLinesTest, GoesOnBehindALineThatWasCutShort) {
  { JsonLines(file()).write({{"step", 1}}); }
  std::ofstream(file(), std::ios::app) << "{\"step\":2,\"lo";
  JsonLines(file(), JsonLines::Existing::Append).write({{"step", 3}});
  EXPECT_EQ(text(), "{\"step\":1}\n{\"step\":2,\"lo\n{\"step\":3}\n");
  JsonLines(file(), JsonLines::Existing::Append).write({{"step", 4}});
  EXPECT_TRUE(text().ends_with("{\"step\":3}\n{\"step\":4}\n"));
}

TEST_F(JsonLinesTest, WritesNullForNanAndSurvivesBrokenUtf8) {
  JsonLines writer(file());
  writer.write({{"loss", std::nan("")}, {"name", "\xff"}});
  const auto line = ordered_json::parse(text());
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_EQ(line["name"], "\xef\xbf\xbd");
}

TEST_F(JsonLinesTest, ReplacesOrAppendsAsAsked) {
  JsonLines(file()).write({{"run", 1}});
  JsonLines(file(), JsonLines::Existing::Append).write({{"run", 2}});
  EXPECT_EQ(text(), "{\"run\":1}\n{\"run\":2}\n");
  JsonLines(file()).write({{"run", 3}});
  EXPECT_EQ(text(), "{\"run\":3}\n");
}

TEST_F(JsonLinesTest, NamesTheFullDisk) {
  JsonLines writer("/dev/full");
  EXPECT_NE(message_of([&] {
              writer.write({{"step", 1}});
            }).find("cannot write to /dev/full: No space left on device"),
            std::string::npos);
}

TEST_F(JsonLinesTest, NamesTheFolderItCannotMake) {
  const fs::path path = "/dev/null/metrics.jsonl";
  EXPECT_NE(message_of([&] { JsonLines{path}; }).find("/dev/null/metrics.jsonl: Not a directory"), std::string::npos);
}

TEST_F(JsonLinesTest, NamesTheFileItCannotOpen) {
  EXPECT_NE(message_of([] { JsonLines{::testing::TempDir()}; }).find("Is a directory"), std::string::npos);
}

TEST_F(JsonLinesTest, ClosesOnceAndRefusesToWriteAfterwards) {
  JsonLines writer(file());
  writer.close();
  writer.close();
  EXPECT_NE(message_of([&] {
              writer.write({{"step", 1}});
            }).find("metrics.jsonl: Bad file descriptor"),
            std::string::npos);
}

TEST_F(JsonLinesTest, MovesTheOpenFile) {
  JsonLines first(file());
  JsonLines second = std::move(first);
  second.write({{"step", 1}});
  EXPECT_EQ(second.path(), file());
  EXPECT_EQ(text(), "{\"step\":1}\n");
}

}  // namespace
}  // namespace snug
