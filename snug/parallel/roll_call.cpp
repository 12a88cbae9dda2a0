#include "snug/parallel/roll_call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <span>
#include <sstream>
#include <thread>
#include <utility>

#include "snug/base/hash.h"

namespace snug::parallel {
namespace {

/// Between two requests. c10d prints a warning where its own wait takes as long as it may.
constexpr std::chrono::milliseconds kPause{50};

/// Of a process that has noticed the failure. A process that has noticed, or has left, is not waited for.
std::string noticed_key(int rank) { return fmt::format("roll/noticed/{}", rank); }
std::string present_key(int rank) { return fmt::format("roll/present/{}", rank); }
std::string doing_key(int rank) { return fmt::format("roll/doing/{}", rank); }
/// A key for one group of ranks, hashed because a group may have a thousand of them.
std::string group_key(std::string_view what, const std::vector<int>& ranks) {
  return fmt::format("roll/{}/{}", what, hash_128(std::as_bytes(std::span(ranks))));
}

std::vector<std::uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

std::string text_of(c10d::Store& store, const std::string& key) {
  const std::vector<std::uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

/// What is asked of the store, which may be one that answers no more: by a thread that is left behind; "" where it
/// fails.
std::future<std::string> asked_apart(std::function<std::string()> ask) {
  std::promise<std::string> promise;
  std::future<std::string> answer = promise.get_future();
  std::thread([ask = std::move(ask), promise = std::move(promise)]() mutable {
    try {
      promise.set_value(ask());
    } catch (...) {
      promise.set_value({});
    }
  }).detach();
  return answer;
}

/// "" where there is no answer in time.
std::string within(std::chrono::milliseconds patience, std::function<std::string()> ask) {
  std::future<std::string> answer = asked_apart(std::move(ask));
  return answer.wait_for(patience) == std::future_status::ready ? answer.get() : std::string();
}

/// The missing ranks, one line each: "<rank> <what it was doing>".
std::string absent_of(c10d::Store& store, const std::vector<int>& ranks, std::chrono::milliseconds patience) {
  std::vector<std::string> present;
  for (const int rank : ranks) present.push_back(present_key(rank));
  const auto until = std::chrono::steady_clock::now() + patience;
  while (!store.check(present) && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kPause);
  std::string lines;
  for (const int rank : ranks) {
    if (store.check({noticed_key(rank)})) continue;
    const bool has_said = store.check({doing_key(rank)});
    lines += fmt::format("{} {}\n", rank, has_said ? text_of(store, doing_key(rank)) : std::string());
  }
  return lines;
}

std::string described(const std::string& lines, int own) {
  std::vector<std::string> each;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const std::size_t blank = line.find(' ');
    const std::string rank = line.substr(0, blank), doing = line.substr(blank + 1);
    // One that comes late may have been given up.
    if (rank == std::to_string(own)) continue;
    each.push_back(doing.empty() ? rank : fmt::format("{} ({})", rank, doing));
  }
  if (each.empty()) return {};
  return each.size() == 1 ? fmt::format("the process of rank {} has", each.front())
                          : fmt::format("the processes of ranks {} have", fmt::join(each, ", "));
}

/// Waits until `count` processes have read the result. For rank 0, which may hold the store: when it ends, those that
/// are still reading find nobody.
void wait_for_readers(c10d::Store& store, const std::string& read, std::int64_t count,
                      std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (store.add(read, 0) < count && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(kPause);
}

/// The first process that notices the failure looks for missing ranks and publishes the result; the others wait for
/// it. So the number of store requests is linear in the number of processes.
std::string call(c10d::Store& store, int own, const std::vector<int>& ranks, std::chrono::milliseconds patience) {
  store.set(noticed_key(own), bytes_of("1"));
  store.set(present_key(own), bytes_of("1"));
  const std::string found = group_key("found", ranks), read = group_key("read", ranks);
  const std::vector<std::uint8_t> me = bytes_of(std::to_string(own));
  if (store.compareSet(group_key("asks", ranks), {}, me) == me) {
    store.set(found, bytes_of(absent_of(store, ranks, patience)));
  } else {
    store.wait({found}, patience + patience / 2);
  }
  // The asker reads it back, too: set() does not wait, and this process may end before the store has it.
  const std::string lines = text_of(store, found);
  store.add(read, 1);
  if (own == 0) {
    const auto readers = static_cast<std::ptrdiff_t>(ranks.size()) - std::ranges::count(lines, '\n');
    wait_for_readers(store, read, readers, patience / 2);
  }
  return described(lines, own);
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
    (void)within(patience_, departure());
  } catch (...) {  // NOLINT(bugprone-empty-catch): others find out by themselves
  }
}

void RollCall::begin_to_leave() const noexcept {
  try {
    (void)asked_apart(departure());
  } catch (...) {  // NOLINT(bugprone-empty-catch): others find out by themselves
  }
}

std::function<std::string()> RollCall::departure() const {
  return [store = store_, own = rank_] {
    store->set(present_key(own), bytes_of("1"));
    return std::string();
  };
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
