#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "snug/base/bytes.h"

namespace snug::report {

struct StepStatus {
  std::int64_t step = 0;  ///< Steps done.
  std::int64_t steps = 0;
  double loss = 0;
  double tokens_per_second = 0;
  Bytes peak = 0;
  std::optional<Bytes> budget;
  double seconds = 0;                     ///< Since the run began.
  std::optional<double> validation_loss;  ///< Only after a step that validated; a terminal goes on showing it.
};

/// Of what a terminal shows.
enum class Colour : unsigned char { None, Ansi };

/// The line that a terminal shows, at most `columns` wide: what matters least is left out first, and the bar takes
/// what room there is. `seconds_left` is none as long as nobody can know.
std::string progress_line(const StepStatus& status, std::optional<double> seconds_left, int columns, Colour colour);

/// Shows how far a run is. On a terminal one line is redrawn in place; elsewhere the first step, the last, those that
/// validated and one about every 10 % or 10 s become lines of their own. Nothing here throws: a display that cannot
/// be written does not stop a run. One thread at a time. Movable; after a move only the new object shows anything.
class Progress {
 public:
  /// Writes to stderr: in place where it is a terminal that can do so (TERM is not "dumb"), in plain lines otherwise.
  static Progress for_terminal();
  /// Redraws in place on `file`, in the width of its terminal (terminal_columns) or 80 columns, in colour unless
  /// NO_COLOR is set and not empty.
  static Progress in_place(std::FILE* file);
  /// Writes plain lines to `file`, which the caller keeps open and closes.
  static Progress plain(std::FILE* file);
  /// Shows nothing, notes included.
  static Progress silent();

  Progress(Progress&&) noexcept;
  Progress& operator=(Progress&&) noexcept;
  /// Calls finish().
  ~Progress();

  /// After every step.
  void update(const StepStatus& status);

  /// Prints one line of its own, above the bar where there is one.
  void note(std::string_view line);

  /// Shows the last state and leaves the cursor on a new line. A second call does nothing until the next update().
  void finish();

 private:
  class Display;
  class Plain;
  class InPlace;
  explicit Progress(std::unique_ptr<Display> display);

  std::unique_ptr<Display> display_;
};

}  // namespace snug::report
