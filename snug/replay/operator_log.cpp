#include "snug/replay/operator_log.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace snug::replay {
namespace {

thread_local std::vector<std::string>* t_names = nullptr;

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  if (t_names != nullptr) t_names->emplace_back(function.name());
  return nullptr;
}

}  // namespace

OperatorLog::OperatorLog(std::vector<std::string>& names) : previous_(std::exchange(t_names, &names)) {
  static const at::CallbackHandle observer =
      at::addGlobalCallback(at::RecordFunctionCallback(&note).scopes({at::RecordScope::FUNCTION}));
  static_cast<void>(observer);
}

OperatorLog::~OperatorLog() { t_names = previous_; }

std::string where_they_part(const std::vector<std::string>& forward, const std::vector<std::string>& again) {
  const auto [f, a] = std::ranges::mismatch(forward, again);
  const auto name = [](auto at, auto end) { return at == end ? std::string("nothing more") : *at; };
  if (f == forward.end() && a == again.end()) return fmt::format("both called the same {} operators", forward.size());
  return fmt::format("they part at operator {} of {}: {} in forward, {} when it ran again", f - forward.begin() + 1,
                     forward.size(), name(f, forward.end()), name(a, again.end()));
}

}  // namespace snug::replay
