#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <utility>
#include <vector>

// What the streams of simulated devices have to do, and a clock for each that no other process disturbs.
namespace snug::testing {

/// A place in a stream: what was put there before it is done, or not.
struct Ticket {
  c10::Stream stream;
  std::uint64_t number = 0;  ///< of the stream's tasks
  double seconds = 0;        ///< when it is done, on the simulated clock
};

/// The tasks of all streams of all simulated devices. Without an order a task is done where it is put. With one, which
/// is a seed, tasks wait, in the order of their stream, and chance says how far which stream has come, but for what
/// somebody waits for, and which of them sleep for a while and do nothing else: the same seed and program give the
/// same. Tasks run one at a time, on the thread that waits.
///
/// The clock: a task begins when the stream is free and the host has put it there, and takes the seconds that it is put
/// with; a host that waits is then as late as what it waits for. All of it is counted, and nothing measured.
/// Any thread.
class Streams {
 public:
  using Task = std::function<void()>;

  static Streams& instance();

  Ticket put(c10::Stream stream, Task task, double seconds = 0);
  /// After what is in the stream now.
  Ticket last(c10::Stream stream);
  /// What is put into the stream from now on begins after the ticket.
  void let_wait(c10::Stream stream, const Ticket& ticket);
  [[nodiscard]] bool done(const Ticket& ticket);
  /// Does what the stream has; the host's clock does not know of it.
  void catch_up(c10::Stream stream);
  /// Does what is missing. What a task throws comes out here, in place of the thread that has put it.
  void wait_for(const Ticket& ticket);
  void wait_for(c10::Stream stream) { wait_for(last(stream)); }
  void wait_for_all();

  /// From now on, after all that is there is done; nullopt: without one.
  void set_order(std::optional<std::uint64_t> seed);
  [[nodiscard]] bool in_order_of_chance();

  /// For tests of tests: the wait of a stream after so many others is left out, once; nullopt: none.
  void leave_out_wait(std::optional<std::int64_t> after);
  /// That streams were told of so far.
  [[nodiscard]] std::int64_t waits();

  /// The host's, in seconds.
  double host_clock();

 private:
  struct Entry {
    Task task;
    std::vector<Ticket> after;
  };
  struct Queue {
    std::deque<Entry> waiting;
    std::vector<Ticket> after;  // of the next entry
    std::uint64_t put = 0, done = 0;
    double clock = 0;
    bool sleeps = false;
  };
  using Key = std::pair<c10::DeviceIndex, c10::StreamId>;

  Streams() = default;
  Queue& queue(c10::Stream stream);
  bool is_done(const Ticket& ticket);
  [[nodiscard]] std::vector<Ticket> last_of_all() const;
  void run_front(Queue& queue);
  bool run_one_that_is_awake();
  void run_needed(c10::Stream stream, std::size_t depth);
  void run_some();
  void run_until(const Ticket& ticket);

  std::recursive_mutex mutex_;  // a task may free memory, which puts others
  std::map<Key, Queue> queues_;
  std::optional<std::mt19937_64> chance_;
  std::optional<std::int64_t> waits_to_omission_;
  std::int64_t waits_ = 0;
  double host_clock_ = 0;
};

}  // namespace snug::testing
