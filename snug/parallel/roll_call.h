#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace snug::parallel {

/// Finds out who is missing when a collective has failed: who notices says so at the store where all have met, and
/// those that have not said so some seconds later have ended, hang, or have not come to it yet. The first that
/// notices asks for all of them, and tells the others: a few messages to the store for each process.
class RollCall {
 public:
  /// `patience`: with those that have not said so.
  RollCall(c10::intrusive_ptr<c10d::Store> store, int rank, std::chrono::milliseconds patience)
      : store_(std::move(store)), rank_(rank), patience_(patience) {}

  /// What this process does from here on, as "step 12", for the messages of others. A message to the store, if it can
  /// be reached.
  void doing(std::string_view what) const noexcept;
  /// This process does no more, and is not waited for. If the store answers, within the patience.
  void leave() const noexcept;
  /// The same without waiting for the store.
  void begin_to_leave() const noexcept;
  /// "the process of rank 3 (step 12) has", of these ranks; empty where all have noticed, or the store does not answer
  /// either. Takes seconds, and never much longer. From any thread.
  [[nodiscard]] std::string missing(const std::vector<int>& ranks) noexcept;

 private:
  [[nodiscard]] std::function<std::string()> departure() const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::string found_;  // once: of further groups it is the same
};

}  // namespace snug::parallel
