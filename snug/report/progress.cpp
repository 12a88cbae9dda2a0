#include "snug/report/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "snug/base/clock.h"
#include "snug/report/table.h"
#include "snug/report/terminal.h"

namespace snug::report {
namespace {

constexpr const char* kGreen = "32";
constexpr const char* kYellow = "33";
constexpr const char* kRed = "31";
constexpr const char* kCyan = "36";

std::string loss_text(double loss) {
  return std::abs(loss) < 1e4 || !std::isfinite(loss) ? fmt::format("{:.4f}", loss) : fmt::format("{:.3e}", loss);
}

std::string speed_text(double tokens_per_second) {
  if (tokens_per_second >= 1e6) return fmt::format("{:.1f}M tok/s", tokens_per_second / 1e6);
  if (tokens_per_second >= 1e4) return fmt::format("{:.1f}k tok/s", tokens_per_second / 1e3);
  return fmt::format("{:.0f} tok/s", tokens_per_second);
}

std::string duration_text(double seconds) {
  constexpr double kLongest = 1e9;
  const auto total = static_cast<std::int64_t>(std::llround(std::clamp(seconds, 0.0, kLongest)));
  const std::int64_t days = total / 86400;
  const std::int64_t hours = total / 3600 % 24;
  const std::int64_t minutes = total / 60 % 60;
  if (days > 0) return fmt::format("{}d {:02}h", days, hours);
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

/// "peak 212.0 / 400.0 MiB": the unit once where both have the same.
std::string memory_text(const StepStatus& status) {
  std::string peak = format_bytes(status.peak);
  if (!status.budget) return "peak " + peak;
  const std::string budget = format_bytes(*status.budget);
  const std::string unit = budget.substr(budget.find(' '));
  if (peak.ends_with(unit)) peak.resize(peak.size() - unit.size());
  return fmt::format("peak {} / {}", peak, budget);
}

double share(double part, double whole) { return whole > 0 ? std::clamp(part / whole, 0.0, 1.0) : 0.0; }

/// `cells` columns between two edges, filled from the left in eighths of a column.
std::string bar(double fraction, int cells, const char* code, Colour colour) {
  static constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::floor(fraction * cells * 8));
  std::string filled;
  for (int i = 0; i < eighths / 8; ++i) filled += "█";
  filled += kEighths[static_cast<std::size_t>(eighths % 8)];
  const std::string empty(static_cast<std::size_t>(cells - (eighths + 7) / 8), ' ');
  if (colour == Colour::Ansi) filled = fmt::format("\x1b[{}m{}\x1b[0m", code, filled);
  return "▕" + filled + empty + "▏";
}

const char* memory_colour(double fraction) {
  if (fraction < 0.80) return kGreen;
  return fraction < 0.95 ? kYellow : kRed;
}

struct Part {
  std::string text;
  int importance;  ///< Smaller goes first when the line is too long.
};

int width_of(const std::vector<Part>& parts) {
  int width = 0;
  for (const Part& part : parts) width += display_width(part.text) + 2;
  return std::max(0, width - 2);
}

}  // namespace

std::string progress_line(const StepStatus& status, std::optional<double> seconds_left, int columns, Colour colour) {
  constexpr int kShortestBar = 8;
  constexpr int kLongestBar = 24;
  constexpr int kGaugeCells = 6;
  constexpr int kBarImportance = 5;
  const double done = share(static_cast<double>(status.step), static_cast<double>(status.steps));
  const auto progress_bar = [&](int cells) { return bar(done, cells, kCyan, colour); };
  std::vector<Part> parts;
  parts.push_back({progress_bar(kShortestBar), kBarImportance});
  parts.push_back({fmt::format("{}/{}", status.step, status.steps), 8});
  parts.push_back({"loss " + loss_text(status.loss), 7});
  if (status.validation_loss) parts.push_back({"val " + loss_text(*status.validation_loss), 2});
  parts.push_back({speed_text(status.tokens_per_second), 3});
  parts.push_back({memory_text(status), 6});
  if (status.budget) {
    const double used = share(static_cast<double>(status.peak), static_cast<double>(*status.budget));
    parts.push_back({bar(used, kGaugeCells, memory_colour(used), colour), 1});
  }
  if (seconds_left) parts.push_back({"ETA " + duration_text(*seconds_left), 4});

  while (parts.size() > 1 && width_of(parts) > columns) {
    parts.erase(std::ranges::min_element(parts, {}, &Part::importance));
  }
  if (parts.front().importance == kBarImportance) {
    const int spare = columns - width_of(parts);
    parts.front().text = progress_bar(std::min(kLongestBar, kShortestBar + spare));
  }
  std::string line;
  for (const Part& part : parts) line += (line.empty() ? "" : "  ") + part.text;
  // What is left of the last part is "12/100", one byte a column.
  if (parts.size() == 1) line.resize(std::min(line.size(), static_cast<std::size_t>(std::max(0, columns))));
  return line;
}

/// What both displays have in common: where they write and what they remember.
class Progress::Display {
 public:
  explicit Display(std::FILE* file) : file_(file) {}
  virtual ~Display() = default;
  virtual void show(const StepStatus& status) = 0;
  virtual void note(std::string_view line) = 0;
  virtual void finish() = 0;

 protected:
  void remember(const StepStatus& status) {
    if (!first_) first_ = status;
    last_ = status;
  }

  /// From the steps after the first: the first one also records and plans, and a resumed run does not begin at 0.
  [[nodiscard]] std::optional<double> seconds_left() const {
    if (!last_ || last_->step <= first_->step || last_->step >= last_->steps) return std::nullopt;
    const double per_step = (last_->seconds - first_->seconds) / static_cast<double>(last_->step - first_->step);
    return per_step * static_cast<double>(last_->steps - last_->step);
  }

  void print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), file_);
    std::fflush(file_);
  }

  [[nodiscard]] const std::optional<StepStatus>& last() const { return last_; }
  [[nodiscard]] std::FILE* file() const { return file_; }

 private:
  std::FILE* file_;
  std::optional<StepStatus> first_;
  std::optional<StepStatus> last_;
};

class Progress::Plain : public Display {
 public:
  using Display::Display;

  void show(const StepStatus& status) override {
    remember(status);
    unprinted_ = true;
    const bool due = !printed_ || status.step >= status.steps || status.validation_loss.has_value() ||
                     status.seconds - printed_->seconds >= 10 || (status.step - printed_->step) * 10 >= status.steps;
    if (due) print_last();
  }

  void note(std::string_view line) override { print(fmt::format("{}\n", line)); }

  void finish() override {
    if (unprinted_) print_last();
  }

 private:
  void print_last() {
    const StepStatus& status = *last();
    std::string line = fmt::format("step {}/{}  loss {}", status.step, status.steps, loss_text(status.loss));
    if (status.validation_loss) line += "  validation " + loss_text(*status.validation_loss);
    line += fmt::format("  {}  {}", speed_text(status.tokens_per_second), memory_text(status));
    if (const auto left = seconds_left()) line += "  ETA " + duration_text(*left);
    print(line + "\n");
    printed_ = status;
    unprinted_ = false;
  }

  std::optional<StepStatus> printed_;
  bool unprinted_ = false;
};

class Progress::InPlace : public Display {
 public:
  explicit InPlace(std::FILE* file) : Display(file) {
    const char* no_colour = std::getenv("NO_COLOR");
    colour_ = no_colour == nullptr || no_colour[0] == '\0' ? Colour::Ansi : Colour::None;
  }

  void show(const StepStatus& status) override {
    remember(status);
    if (status.validation_loss) validation_loss_ = status.validation_loss;
    visible_ = true;
    // Faster than this nobody can read it, and a slow terminal would hold up the run.
    constexpr double kSecondsBetweenDrawings = 0.05;
    if (status.step < status.steps && monotonic_seconds() - drawn_at_ < kSecondsBetweenDrawings) return;
    draw();
  }

  void note(std::string_view line) override {
    print(fmt::format("{}{}\n", kClear, line));
    if (visible_) draw();
  }

  void finish() override {
    if (!visible_) return;
    draw();
    print("\n");
    visible_ = false;
  }

 private:
  static constexpr const char* kClear = "\r\x1b[K";

  void draw() {
    // A character in the last column makes some terminals begin a new line.
    const int columns = terminal_columns(file()).value_or(80) - 1;
    StepStatus status = *last();
    status.validation_loss = validation_loss_;
    print(kClear + progress_line(status, seconds_left(), columns, colour_));
    drawn_at_ = monotonic_seconds();
  }

  Colour colour_ = Colour::Ansi;
  bool visible_ = false;
  std::optional<double> validation_loss_;  // the newest
  double drawn_at_ = -1e9;
};

Progress::Progress(std::unique_ptr<Display> display) : display_(std::move(display)) {}
Progress::Progress(Progress&&) noexcept = default;
Progress& Progress::operator=(Progress&& other) noexcept {
  std::swap(display_, other.display_);
  return *this;
}
Progress::~Progress() { finish(); }

Progress Progress::for_terminal() {
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  return ::isatty(::fileno(stderr)) == 1 && !dumb ? in_place(stderr) : plain(stderr);
}
Progress Progress::in_place(std::FILE* file) { return Progress(std::make_unique<InPlace>(file)); }
Progress Progress::plain(std::FILE* file) { return Progress(std::make_unique<Plain>(file)); }
Progress Progress::silent() { return Progress(nullptr); }

void Progress::update(const StepStatus& status) {
  if (display_) display_->show(status);
}
void Progress::note(std::string_view line) {
  if (display_) display_->note(line);
}
void Progress::finish() {
  if (display_) display_->finish();
}

}  // namespace snug::report
