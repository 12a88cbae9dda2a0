#include "snug/memory/swallowed_refusal.h"

#include <ATen/Context.h>

#include <memory>
#include <utility>

namespace snug::memory {
namespace {

thread_local std::unique_ptr<const OutOfBudget::Details> t_refused;

}  // namespace

void note_refusal(const OutOfBudget::Details& details) {
  // Where somebody does without oneDNN anyway, nothing is to be put back.
  if (at::globalContext().userEnabledMkldnn()) t_refused = std::make_unique<const OutOfBudget::Details>(details);
}

void forget_refusal() noexcept { t_refused = nullptr; }

std::optional<OutOfBudget::Details> take_swallowed_refusal() {
  if (!t_refused) return std::nullopt;
  const auto refused = std::exchange(t_refused, nullptr);
  if (at::globalContext().userEnabledMkldnn()) return std::nullopt;  // it has come through
  at::globalContext().setUserEnabledMkldnn(true);
  return *refused;
}

void rethrow_swallowed_refusal() {
  if (auto refused = take_swallowed_refusal()) refuse(*std::move(refused));
}

}  // namespace snug::memory
