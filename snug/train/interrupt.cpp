#include "snug/train/interrupt.h"

#include <csignal>

namespace snug::train {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void on_signal(int signal) {
  if (g_interrupted) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  g_interrupted = 1;
}

}  // namespace

InterruptScope::InterruptScope() {
  g_interrupted = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // writes of metrics are not cut short
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

InterruptScope::~InterruptScope() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool interrupted() noexcept { return g_interrupted != 0; }

}  // namespace snug::train
