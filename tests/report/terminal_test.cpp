#include "snug/report/terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

namespace snug::report {
namespace {

/// A pseudo-terminal of so many columns, and COLUMNS unset while it lives.
class Terminal : public testing::Test {
 protected:
  Terminal() {
    if (const char* columns = std::getenv("COLUMNS")) before_ = columns;
    ::unsetenv("COLUMNS");
    if (::openpty(&master_, &slave_, nullptr, nullptr, nullptr) == 0) file_ = ::fdopen(slave_, "w");
  }
  ~Terminal() override {
    if (file_ != nullptr) std::fclose(file_);
    ::close(master_);
    if (before_) ::setenv("COLUMNS", before_->c_str(), 1);
  }

  void widen(unsigned short columns) const {
    winsize size{};
    size.ws_col = columns;
    ASSERT_EQ(::ioctl(master_, TIOCSWINSZ, &size), 0);
  }
  std::FILE* file_ = nullptr;

 private:
  int master_ = -1, slave_ = -1;
  std::optional<std::string> before_;
};

TEST_F(Terminal, SaysHowWideItIs) {
  ASSERT_NE(file_, nullptr);
  widen(47);
  EXPECT_EQ(terminal_columns(file_), 47);
  widen(0);  // one that does not know
  EXPECT_EQ(terminal_columns(file_), 80);
}

TEST_F(Terminal, ColumnsInTheEnvironmentGoBefore) {
  ASSERT_NE(file_, nullptr);
  widen(47);
  ::setenv("COLUMNS", "33", 1);
  EXPECT_EQ(terminal_columns(file_), 33);
  for (const char* none : {"", "0", "-5", "wide", "33x"}) {
    ::setenv("COLUMNS", none, 1);
    EXPECT_EQ(terminal_columns(file_), 47) << none;
  }
}

TEST_F(Terminal, AFileHasNoColumns) {
  ::setenv("COLUMNS", "33", 1);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  EXPECT_EQ(terminal_columns(file.get()), std::nullopt);
}

}  // namespace
}  // namespace snug::report
