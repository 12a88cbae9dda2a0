#include "snug/report/metrics.h"

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

namespace snug::report {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

class MetricsWriterTest : public testing::Test {
 protected:
  ~MetricsWriterTest() override { fs::remove_all(folder_); }

  [[nodiscard]] fs::path file() const { return folder_ / "deep" / "metrics.jsonl"; }
  [[nodiscard]] std::string text() const {
    std::ifstream stream(file());
    return {std::istreambuf_iterator<char>(stream), {}};
  }

 private:
  fs::path folder_ = fs::path(testing::TempDir()) / ("snug_metrics_" + std::to_string(::getpid()) + "_" +
                                                     testing::UnitTest::GetInstance()->current_test_info()->name());
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

TEST_F(MetricsWriterTest, WritesOneObjectALineAtOnceInNewFolders) {
  MetricsWriter writer(file());
  writer.write({{"step", 1}, {"loss", 2.5}});
  EXPECT_EQ(text(), "{\"step\":1,\"loss\":2.5}\n");
  writer.write({{"note", "two\nlines"}});
  EXPECT_EQ(text(), "{\"step\":1,\"loss\":2.5}\n{\"note\":\"two\\nlines\"}\n");
}

TEST_F(MetricsWriterTest, WritesNullForNanAndSurvivesBrokenUtf8) {
  MetricsWriter writer(file());
  writer.write({{"loss", std::nan("")}, {"name", "\xff"}});
  const auto line = ordered_json::parse(text());
  EXPECT_TRUE(line["loss"].is_null());
  EXPECT_EQ(line["name"], "\xef\xbf\xbd");
}

TEST_F(MetricsWriterTest, ReplacesOrAppendsAsAsked) {
  MetricsWriter(file()).write({{"run", 1}});
  MetricsWriter(file(), MetricsWriter::Existing::Append).write({{"run", 2}});
  EXPECT_EQ(text(), "{\"run\":1}\n{\"run\":2}\n");
  MetricsWriter(file()).write({{"run", 3}});
  EXPECT_EQ(text(), "{\"run\":3}\n");
}

TEST_F(MetricsWriterTest, NamesTheFullDisk) {
  MetricsWriter writer("/dev/full");
  EXPECT_NE(message_of([&] {
              writer.write({{"step", 1}});
            }).find("metrics: cannot write to /dev/full: No space left on device"),
            std::string::npos);
}

TEST_F(MetricsWriterTest, NamesTheFolderItCannotMake) {
  const fs::path path = "/dev/null/metrics.jsonl";
  EXPECT_NE(message_of([&] { MetricsWriter{path}; }).find("/dev/null/metrics.jsonl: Not a directory"),
            std::string::npos);
}

TEST_F(MetricsWriterTest, NamesTheFileItCannotOpen) {
  EXPECT_NE(message_of([] { MetricsWriter{testing::TempDir()}; }).find("Is a directory"), std::string::npos);
}

TEST_F(MetricsWriterTest, ClosesOnceAndRefusesToWriteAfterwards) {
  MetricsWriter writer(file());
  writer.close();
  writer.close();
  EXPECT_NE(message_of([&] {
              writer.write({{"step", 1}});
            }).find("metrics.jsonl: Bad file descriptor"),
            std::string::npos);
}

TEST_F(MetricsWriterTest, MovesTheOpenFile) {
  MetricsWriter first(file());
  MetricsWriter second = std::move(first);
  second.write({{"step", 1}});
  EXPECT_EQ(second.path(), file());
  EXPECT_EQ(text(), "{\"step\":1}\n");
}

}  // namespace
}  // namespace snug::report
