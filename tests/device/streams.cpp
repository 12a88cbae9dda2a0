#include "tests/device/streams.h"

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
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
  double clock = std::max(q.clock, host_clock_);  // nothing is reached before it is put there
  for (const Ticket& ticket : q.after) clock = std::max(clock, ticket.seconds);
  // What it is to wait for is part of what has been put there.
  if (!q.after.empty()) return put(stream, [] {});
  return {stream, q.put, clock};
}

void Streams::let_wait(c10::Stream stream, const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  ++waits_;
  if (waits_to_omission_ && (*waits_to_omission_)-- == 0) return waits_to_omission_.reset();
  queue(stream).after.push_back(ticket);
}

void Streams::leave_out_wait(std::optional<std::int64_t> after) {
  const std::lock_guard lock(mutex_);
  waits_to_omission_ = after;
}

std::int64_t Streams::waits() {
  const std::lock_guard lock(mutex_);
  return waits_;
}

bool Streams::is_done(const Ticket& ticket) { return queue(ticket.stream).done >= ticket.number; }

bool Streams::done(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  return is_done(ticket);
}

void Streams::run_front(Queue& queue) {
  const Entry entry = std::move(queue.waiting.front());
  queue.waiting.pop_front();
  ++queue.done;
  // A kernel knows nothing of whoever happens to wait for it: of a recording, of gradients, of autocast.
  const c10::impl::ForceDispatchKeyGuard of_kernels(
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autocast_dispatch_keyset | c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  entry.task();
}

bool Streams::run_one_that_is_awake() {
  std::vector<Queue*> ready;
  for (auto& [key, q] : queues_) {
    if (!q.sleeps && !q.waiting.empty() &&
        std::ranges::all_of(q.waiting.front().after, [&](const Ticket& t) { return is_done(t); }))
      ready.push_back(&q);
  }
  if (ready.empty()) return false;
  run_front(*ready[(*chance_)() % ready.size()]);
  return true;
}

void Streams::run_some() {
  constexpr int kNap = 16;
  if ((*chance_)() % kNap == 0) {
    for (auto& [key, q] : queues_) q.sleeps = (*chance_)() % 2 == 0;
  }
  while ((*chance_)() % 2 == 0 && run_one_that_is_awake()) {
  }
}

/// The stream's next task, or what that waits for.
void Streams::run_needed(c10::Stream stream, std::size_t depth) {
  TORCH_CHECK(depth <= queues_.size(), "simulated device: streams wait for each other");
  Queue& q = queue(stream);
  for (const Ticket& ticket : std::vector<Ticket>(q.waiting.front().after)) {
    if (!is_done(ticket)) return run_needed(ticket.stream, depth + 1);
  }
  run_front(q);
}

void Streams::run_until(const Ticket& ticket) {
  while (!is_done(ticket)) run_needed(ticket.stream, 0);
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

std::vector<Ticket> Streams::last_of_all() const {
  std::vector<Ticket> all;
  for (const auto& [key, q] : queues_) {
    const c10::Stream stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::HPU, key.first), key.second);
    all.push_back({stream, q.put, q.clock});
  }
  return all;
}

void Streams::wait_for_all() {
  const std::lock_guard lock(mutex_);
  for (std::vector<Ticket> all = last_of_all(); !all.empty(); all.pop_back()) run_until(all.back());
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
