#include "snug/train/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

namespace snug::train {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;
std::atomic<bool> g_save_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");
struct sigaction g_before_interrupt, g_before_terminate, g_before_hang_up, g_before_save;

void on_signal(int signal) {
  // A terminal that ends and its shell each send a SIGHUP.
  if (g_interrupted && signal != SIGHUP) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  if (!g_interrupted && signal != SIGHUP) {
    constexpr std::string_view kHeard = "\nsnug: stopping as soon as this step is done; once more ends it here\n";
    const int before = errno;
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kHeard.data(), kHeard.size());
    errno = before;
  }
  g_interrupted = 1;
}

void on_save_signal(int /*signal*/) { request_save(); }

}  // namespace

InterruptScope::InterruptScope() {
  g_interrupted = 0;
  forget_save_request();
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // writes of metrics are not cut short
  ::sigaction(SIGINT, &action, &g_before_interrupt);
  ::sigaction(SIGTERM, &action, &g_before_terminate);
  ::sigaction(SIGHUP, nullptr, &g_before_hang_up);
  if (g_before_hang_up.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
  action.sa_handler = on_save_signal;
  ::sigaction(SIGUSR1, &action, &g_before_save);
}

InterruptScope::~InterruptScope() {
  ::sigaction(SIGINT, &g_before_interrupt, nullptr);
  ::sigaction(SIGTERM, &g_before_terminate, nullptr);
  ::sigaction(SIGHUP, &g_before_hang_up, nullptr);
  ::sigaction(SIGUSR1, &g_before_save, nullptr);
  g_interrupted = 0;
  forget_save_request();
}

bool interrupted() noexcept { return g_interrupted != 0; }

void request_save() noexcept { g_save_requested = true; }
bool save_requested() noexcept { return g_save_requested; }
void forget_save_request() noexcept { g_save_requested = false; }

}  // namespace snug::train
