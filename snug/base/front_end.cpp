#include "snug/base/front_end.h"

#include <atomic>

namespace snug {
namespace {
constexpr FrontEnd kCpp;
// Known before anything runs: an allocation may be refused while libraries are loaded.
constinit std::atomic<const FrontEnd*> g_front_end = &kCpp;
}  // namespace

void set_front_end(const FrontEnd& front) noexcept { g_front_end = &front; }
const FrontEnd& front_end() noexcept { return *g_front_end; }

}  // namespace snug
