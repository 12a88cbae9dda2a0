#include "snug/memory/swallowed_refusal.h"

#include <ATen/Context.h>

#include <memory>
#include <utility>

namespace snug::memory {
namespace {

thread_local std::unique_ptr<const OutOfBudget::Details> t_refused;
thread_local bool t_any = false;  // since somebody took it, which is asked after every operator

}  // namespace

void note_refusal(const OutOfBudget::Details& details) {
  // Where somebody does without oneDNN anyway, nothing is to be put back.
  if (at::globalContext().userEnabledMkldnn()) t_refused = std::make_unique<const OutOfBudget::Details>(details);
  t_any = t_refused != nullptr;
}

void forget_refusal() noexcept {
  if (std::exchange(t_any, false)) t_refused = nullptr;
}

std::optional<OutOfBudget::Details> take_swallowed_refusal() {
  if (!std::exchange(t_any, false)) return std::nullopt;
  const auto refused = std::exchange(t_refused, nullptr);
  if (at::globalContext().userEnabledMkldnn()) return std::nullopt;  // it has come through
  at::globalContext().setUserEnabledMkldnn(true);
  return *refused;
}

void rethrow_swallowed_refusal() {
  if (!t_any) return;
  if (auto refused = take_swallowed_refusal()) refuse(*std::move(refused));
}

}  // namespace snug::memory
