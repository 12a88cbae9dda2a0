#include "snug/parallel/roll_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <map>
#include <thread>
#include <utility>

namespace snug::parallel {
namespace {

using namespace std::chrono_literals;

constexpr auto kPause = 50ms;

std::string noticed_key(int rank) { return fmt::format("roll/noticed/{}", rank); }
std::string left_key(int rank) { return fmt::format("roll/left/{}", rank); }
std::string doing_key(int rank) { return fmt::format("roll/doing/{}", rank); }

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

/// What is asked of the store, which may be one that answers no more: apart, to be left behind; "" then, and where it
/// fails.
template <class Ask>
std::string within(std::chrono::milliseconds patience, Ask ask) {
  std::promise<std::string> promise;
  std::future<std::string> answer = promise.get_future();
  std::thread([ask = std::move(ask), promise = std::move(promise)]() mutable {
    try {
      promise.set_value(ask());
    } catch (...) {
      promise.set_value({});
    }
  }).detach();
  return answer.wait_for(patience) == std::future_status::ready ? answer.get() : std::string();
}

/// With what it said last that it does.
std::string described(c10d::Store& store, int rank) {
  if (!store.check({doing_key(rank)})) return fmt::format("{}", rank);
  const std::vector<std::uint8_t> doing = store.get(doing_key(rank));
  return fmt::format("{} ({})", rank, std::string(doing.begin(), doing.end()));
}

std::string call(c10d::Store& store, int own, const std::vector<int>& ranks, std::chrono::milliseconds patience) {
  store.set(noticed_key(own), bytes_of("1"));
  std::map<int, std::string> absent;
  for (const int rank : ranks) absent.emplace(rank, described(store, rank));
  try {
    const auto until = std::chrono::steady_clock::now() + patience;
    const auto is_awaited = [&](const auto& one) { return !store.check({left_key(one.first)}); };
    for (;;) {
      std::erase_if(absent, [&](const auto& one) { return store.check({noticed_key(one.first)}); });
      if (std::ranges::none_of(absent, is_awaited) || std::chrono::steady_clock::now() > until) break;
      std::this_thread::sleep_for(kPause);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the store's process has noticed, and is gone
  }
  std::vector<std::string> each;
  for (const auto& [rank, what] : absent) each.push_back(what);
  if (each.empty()) return {};
  return each.size() == 1 ? fmt::format("the process of rank {} has", each.front())
                          : fmt::format("the processes of ranks {} have", fmt::join(each, ", "));
}

}  // namespace

void RollCall::doing(std::string_view what) const noexcept {
  try {
    store_->set(doing_key(rank_), bytes_of(what));
  } catch (...) {  // NOLINT(bugprone-empty-catch): it is for messages alone; who needs the store finds out
  }
}

void RollCall::leave() const noexcept {
  try {
    (void)within(patience_, [store = store_, own = rank_] {
      store->set(left_key(own), bytes_of("1"));
      return std::string();
    });
  } catch (...) {  // NOLINT(bugprone-empty-catch): others find out by themselves
  }
}

std::string RollCall::missing(const std::vector<int>& ranks) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (found_.empty()) {
      found_ = within(2 * patience_, [store = store_, own = rank_, ranks, patience = patience_] {
        return call(*store, own, ranks, patience);
      });
    }
    return found_;
  } catch (...) {
    return {};
  }
}

}  // namespace snug::parallel
