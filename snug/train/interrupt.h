#pragma once

namespace snug::train {

/// Handles signals during a run; the destructor restores the previous handlers. Ctrl-C (SIGINT), SIGTERM and SIGHUP
/// (unless it is ignored, as under nohup) stop the run after the current step, or at once while a step is recorded, and
/// print a line on standard error. A second SIGINT or SIGTERM ends the process. SIGUSR1 calls request_save(). At most
/// one object of this class may exist at a time.
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
/// Withdraws the request: the state has been saved, or cannot be.
void forget_save_request() noexcept;

}  // namespace snug::train
