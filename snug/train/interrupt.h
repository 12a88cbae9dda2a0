#pragma once

namespace snug::train {

/// While it lives, Ctrl-C (SIGINT), SIGTERM and, unless it is ignored as under nohup, the terminal's end (SIGHUP) ask
/// the run to stop after the present step, or at once where one is being recorded, and a line on standard error says
/// that this was heard. A second SIGINT or SIGTERM ends the process. SIGUSR1 calls request_save. Then what handled
/// them before does so again. One at a time.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

/// Whether a stop was asked for in the scope that lives.
bool interrupted() noexcept;

/// Asks the run to save its training state after the present step, as SIGUSR1 does while an InterruptScope lives. Any
/// thread.
void request_save() noexcept;
bool save_requested() noexcept;
/// A state has been saved, or none can be.
void forget_save_request() noexcept;

}  // namespace snug::train
