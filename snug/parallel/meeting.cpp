#include "snug/parallel/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "snug/base/errors.h"

namespace snug::parallel {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kCalls = "snug/calls";

std::string prefix_of(std::int64_t call) { return fmt::format("snug/{}", call); }
std::string met_key(std::int64_t call) { return prefix_of(call) + "/met"; }
std::string answer_key(std::int64_t call, int rank) { return fmt::format("{}/answer/{}", prefix_of(call), rank); }

/// One of this process's present meeting, and of no other process or meeting.
std::string new_number() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
}

void set(c10d::Store& store, const std::string& key, std::string_view text) {
  store.set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

std::string value_of(c10d::Store& store, const std::string& key) {
  const std::vector<std::uint8_t> bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

/// Asks again and again, less and less often: c10d prints a warning where a wait at its store takes as long as it may.
/// False where the time is over.
template <class Ask>
bool comes_true(milliseconds timeout, const Ask& ask) {
  constexpr milliseconds kFirst{5}, kLongest{500};
  const Clock::time_point until = Clock::now() + timeout;
  for (milliseconds pause = kFirst;; pause = std::min(2 * pause, kLongest)) {
    if (ask()) return true;
    if (Clock::now() >= until) return false;
    std::this_thread::sleep_until(std::min(until, Clock::now() + pause));
  }
}

std::string call_together(c10d::Store& store, int size, milliseconds timeout) {
  const std::int64_t call = store.add(kCalls, 1);
  set(store, answer_key(call, 0), new_number());
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) keys.push_back(answer_key(call, rank));
  if (!comes_true(timeout, [&] { return store.check(keys); })) {
    std::vector<int> absent;
    for (int rank = 0; rank < size; ++rank) {
      if (!store.check({keys[static_cast<std::size_t>(rank)]})) absent.push_back(rank);
    }
    constexpr std::size_t kNamed = 16;
    const std::size_t more = absent.size() - std::min(absent.size(), kNamed);
    absent.resize(absent.size() - more);
    throw Error(fmt::format("rank {}{} did not come", fmt::join(absent, ", "),
                            more > 0 ? fmt::format(" and {} more", more) : ""));
  }
  std::string met;
  for (const std::string& key : keys) met += value_of(store, key) + "\n";
  set(store, met_key(call), met);
  return prefix_of(call);
}

std::string answer(c10d::Store& store, int rank, milliseconds timeout) {
  const std::string own = new_number();
  std::int64_t answered = 0;
  bool is_of_others = false;  // the meeting of that call
  const bool has_met = comes_true(timeout, [&] {
    const std::int64_t call = store.check({kCalls}) ? store.add(kCalls, 0) : 0;
    if (call > answered) {
      set(store, answer_key(call, rank), own);
      answered = call;
      is_of_others = false;
    }
    if (answered == 0 || is_of_others || !store.check({met_key(answered)})) return false;
    is_of_others = value_of(store, met_key(answered)).find(own) == std::string::npos;
    return !is_of_others;
  });
  if (has_met) return prefix_of(answered);
  throw Error(answered == 0 || is_of_others ? "rank 0 did not come" : "rank 0 has waited for others");
}

}  // namespace

std::string meet_at(c10d::Store& store, int rank, int size, milliseconds timeout) {
  return rank == 0 ? call_together(store, size, timeout) : answer(store, rank, timeout);
}

}  // namespace snug::parallel
