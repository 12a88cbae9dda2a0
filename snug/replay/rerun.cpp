#include "snug/replay/rerun.h"

#include <utility>

namespace snug {

namespace {
thread_local int t_early_stop = -1;  // no override
}

EarlyStopScope::EarlyStopScope(bool early_stop) : previous_(std::exchange(t_early_stop, early_stop ? 1 : 0)) {}
EarlyStopScope::~EarlyStopScope() { t_early_stop = previous_; }

namespace replay {

bool stops_early(const Rerun& options) { return t_early_stop >= 0 ? t_early_stop == 1 : options.early_stop; }

}  // namespace replay
}  // namespace snug
