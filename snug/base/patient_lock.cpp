#include "snug/base/patient_lock.h"

namespace snug {
namespace {
Waiting g_waiting;
}

void set_waiting(Waiting waiting) noexcept { g_waiting = waiting; }
const Waiting& waiting() noexcept { return g_waiting; }

}  // namespace snug
