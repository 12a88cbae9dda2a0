#include "snug/memory/arena.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <utility>

#include "snug/memory/accelerator_memory.h"

namespace snug::memory {
namespace {

/// Of what is wanted, one after the other: a supply may reserve more than it is asked for.
constexpr std::array kShares = {1.0, 0.9, 0.75, 0.5};

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

Arena::~Arena() {
  try {
    give_back(take_out());
  } catch (const std::exception&) {  // a device that has failed, or is gone: it has the memory, too
  }
}

Arena::Base Arena::take_out() {
  bytes_ = 0;
  free_ = {};
  return {std::exchange(base_, nullptr), std::exchange(in_use_, {}), stream_};
}

/// Its supply does not know who uses it. Without the lock, as others wait for that where this waits.
void Arena::give_back(const Base& base) {
  if (base.data == nullptr) return;
  for (const InUse& part : base.in_use) part.mark.wait();
  if (base.stream) StreamMark(*base.stream).wait();
  supply_.give(base.data);
}

std::vector<Arena::Asked> Arena::end() {
  const std::lock_guard lock(mutex_);
  ++step_;
  open_.clear();
  known_.clear();
  std::vector<Asked> asked = std::exchange(asked_, {});
  return asked.size() < kMostAsked ? asked : std::vector<Asked>();
}

void Arena::close() {
  const std::lock_guard lock(mutex_);
  thread_ = {};
  closed_ = true;
}

void Arena::begin(std::vector<std::shared_ptr<const Places>> known) {
  const std::lock_guard lock(mutex_);
  const c10::Stream stream = current_stream(device_);
  if (stream_ && *stream_ != stream) {  // it serves another from now on, which comes after what that one still does
    in_use_.push_back({0, bytes_, StreamMark(*stream_)});
    for (auto& [data, here] : here_) here.used_by.push_back(*stream_);
  }
  stream_ = stream;
  thread_ = std::this_thread::get_id();
  closed_ = false;
  known_ = std::move(known);
  at_end_ = false;
  placed_ = elsewhere_ = 0;
  ++step_;
  asked_.clear();
  open_.clear();
  std::erase_if(in_use_, [](const InUse& part) { return part.mark.reached(); });
}

bool Arena::resize(Bytes bytes, std::optional<Bytes> limit) {
  Base before;
  {
    const std::lock_guard lock(mutex_);
    if (!here_.empty()) return false;
    before = take_out();
  }
  give_back(before);
  supply_.release_cached();
  if (limit) bytes = std::min(bytes, *limit - supply_.reserved());
  for (const double share : kShares) {
    const auto tried = static_cast<Bytes>(share * static_cast<double>(bytes));
    if (tried <= 0) break;
    try {
      void* const taken = supply_.take(static_cast<std::size_t>(tried)).release_context();
      const std::lock_guard lock(mutex_);
      base_ = taken;
      bytes_ = tried;
      free_.give(0, tried);
      break;
    } catch (const c10::OutOfMemoryError&) {  // else blocks lie where the supply puts them, as before
    }
  }
  return true;
}

std::vector<std::pair<Bytes, Bytes>> Arena::occupied() const {
  std::vector<std::pair<Bytes, Bytes>> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [data, here] : here_) all.emplace_back(here.offset, here.bytes);
  }
  std::ranges::sort(all);
  return all;
}

Arena::Stats Arena::stats() const {
  const std::lock_guard lock(mutex_);
  return {.bytes = bytes_, .placed = placed_, .elsewhere = elsewhere_};
}

bool Arena::serves() const { return base_ != nullptr && current_stream(device_) == stream_; }

Arena::Request Arena::ask(Bytes bytes) {
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  const std::lock_guard lock(mutex_);
  if (closed_ || asked_.size() == kMostAsked || (std::this_thread::get_id() != thread_ && !in_backward)) return {bytes};
  asked_.push_back({bytes});
  return {bytes, step_, asked_.size() - 1};
}

bool Arena::agrees_with_known(const Request& request) {
  std::erase_if(known_, [&](const std::shared_ptr<const Places>& places) {
    at_end_ |= request.place == places->size();
    return request.place >= places->size() || (*places)[request.place].bytes != request.bytes;
  });
  return !known_.empty();
}

void* Arena::take(Request& request) {
  const std::lock_guard lock(mutex_);
  if (request.step != step_) return nullptr;
  const bool agrees = agrees_with_known(request);
  const Bytes offset = agrees ? (*known_.front())[request.place].offset : kElsewhere;
  if (offset != kElsewhere && serves() && free_.has(offset, request.bytes)) {
    placed_ += request.counted ? 0 : 1;
    return put(request, offset);
  }
  if ((agrees || !at_end_) && !std::exchange(request.counted, true)) ++elsewhere_;
  return agrees || !serves() ? nullptr : put_anywhere(request);
}

void* Arena::take_any(const Request& request) {
  const std::lock_guard lock(mutex_);
  return serves() ? put_anywhere(request) : nullptr;
}

void* Arena::put_anywhere(const Request& request) {
  const auto range = free_.smallest(request.bytes);
  return range ? put(request, range->first) : nullptr;
}

void* Arena::put(const Request& request, Bytes offset) {
  wait_for_others(offset, request.bytes);
  void* const data = static_cast<std::byte*>(base_) + offset;
  here_.emplace(data, Here{offset, request.bytes});
  free_.take_at(offset, request.bytes);
  if (request.step == step_) open_.insert_or_assign(data, request.place);
  return data;
}

void Arena::wait_for_others(Bytes offset, Bytes bytes) {
  for (const InUse& part : in_use_) {
    if (part.offset < offset + bytes && offset < part.offset + part.bytes) part.mark.let_wait(*stream_);
  }
}

void Arena::lies_at(const Request& request, const void* data) {
  const std::lock_guard lock(mutex_);
  if (request.step == step_) open_.insert_or_assign(data, request.place);
}

void Arena::note_end(const void* data) {
  const auto open = open_.find(data);
  if (open == open_.end()) return;
  asked_[open->second].until = std::ssize(asked_);
  open_.erase(open);
}

void Arena::gone(const void* data) noexcept {
  const std::lock_guard lock(mutex_);
  note_end(data);
}

void Arena::give(const void* data) noexcept {
  const std::lock_guard lock(mutex_);
  note_end(data);
  const auto block = here_.find(data);
  if (block == here_.end()) return;
  const Here here = std::move(block->second);
  here_.erase(block);
  try {
    for (const c10::Stream stream : here.used_by) in_use_.push_back({here.offset, here.bytes, StreamMark(stream)});
    if (here.used_by.empty()) supply_.emptied(const_cast<void*>(data), here.bytes, *stream_);
  } catch (const std::exception&) {
    return;  // nobody knows when those streams are done with it: it is not used again
  }
  free_.give(here.offset, here.bytes);
}

bool Arena::record_stream(const void* data, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto block = here_.find(data);
  if (block == here_.end()) return false;
  std::vector<c10::Stream>& used_by = block->second.used_by;
  if (stream != stream_ && std::ranges::find(used_by, stream) == used_by.end()) used_by.push_back(stream);
  return true;
}

}  // namespace snug::memory
