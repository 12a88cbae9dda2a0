#include "tests/device/streams.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <vector>

namespace snug::testing {

Streams& Streams::instance() {
  static auto* const streams = new Streams;
  return *streams;
}

Streams::Queue& Streams::queue(c10::Stream stream) { return queues_[{stream.device_index(), stream.id()}]; }

Ticket Streams::put(c10::Stream stream, Task task, double seconds) {
  const std::lock_guard lock(mutex_);
  Queue& q = queue(stream);
  q.clock = std::max(q.clock, host_clock_);
  for (const Ticket& ticket : q.after) q.clock = std::max(q.clock, ticket.seconds);
  q.clock += seconds;
  q.waiting.push_back({std::move(task), std::exchange(q.after, {})});
  const Ticket ticket{stream, ++q.put, q.clock};
  if (chance_) {
    run_some();
  } else {
    run_until(ticket);  // and the host's clock does not know, as nobody has waited
  }
  return ticket;
}

Ticket Streams::last(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  Queue& q = queue(stream);
  double clock = q.clock;
  for (const Ticket& ticket : q.after) clock = std::max(clock, ticket.seconds);
  // What it is to wait for is part of what has been put there.
  if (!q.after.empty()) return put(stream, [] {});
  return {stream, q.put, clock};
}

void Streams::let_wait(c10::Stream stream, const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  queue(stream).after.push_back(ticket);
}

bool Streams::is_done(const Ticket& ticket) { return queue(ticket.stream).done >= ticket.number; }

bool Streams::done(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  return is_done(ticket);
}

bool Streams::run_one() {
  std::vector<Queue*> ready;
  for (auto& [key, q] : queues_) {
    if (!q.waiting.empty() && std::ranges::all_of(q.waiting.front().after, [&](const Ticket& t) { return is_done(t); }))
      ready.push_back(&q);
  }
  if (ready.empty()) return false;
  Queue& chosen = *ready[chance_ ? (*chance_)() % ready.size() : 0];
  const Entry entry = std::move(chosen.waiting.front());
  chosen.waiting.pop_front();
  ++chosen.done;
  entry.task();
  return true;
}

void Streams::run_some() {
  while ((*chance_)() % 2 == 0 && run_one()) {
  }
}

void Streams::run_until(const Ticket& ticket) {
  while (!is_done(ticket)) TORCH_CHECK(run_one(), "simulated device: streams wait for each other");
}

void Streams::catch_up(c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  run_until(last(stream));
}

void Streams::wait_for(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  run_until(ticket);
  host_clock_ = std::max(host_clock_, ticket.seconds);
}

void Streams::wait_for_all() {
  const std::lock_guard lock(mutex_);
  while (run_one()) {
  }
  for (const auto& [key, q] : queues_) host_clock_ = std::max(host_clock_, q.clock);
}

void Streams::set_order(std::optional<std::uint64_t> seed) {
  const std::lock_guard lock(mutex_);
  wait_for_all();
  chance_.reset();
  if (seed) chance_.emplace(*seed);
}

bool Streams::in_order_of_chance() {
  const std::lock_guard lock(mutex_);
  return chance_.has_value();
}

double Streams::host_clock() {
  const std::lock_guard lock(mutex_);
  return host_clock_;
}

}  // namespace snug::testing
