#include "snug/memory/arena.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "snug/memory/accelerator_memory.h"

namespace snug::memory {
namespace {

constexpr int kTries = 3;
constexpr Bytes kLess = 32_MiB;

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

}  // namespace

Arena::~Arena() {
  try {
    give_back();
  } catch (const std::exception&) {  // a device that has failed, or is gone: it has the memory, too
  }
}

/// Its supply does not know who uses it.
void Arena::give_back() {
  if (base_ == nullptr) return;
  for (const InUse& part : std::exchange(in_use_, {})) part.mark.wait();
  if (stream_) StreamMark(*stream_).wait();
  supply_.give(std::exchange(base_, nullptr));
  bytes_ = 0;
  free_ = {};
}

std::vector<Arena::Asked> Arena::end() {
  const std::lock_guard lock(mutex_);
  ++step_;
  open_.clear();
  known_.clear();
  return std::exchange(asked_, {});
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
  known_ = std::move(known);
  at_end_ = false;
  placed_ = elsewhere_ = 0;
  ++step_;
  asked_.clear();
  open_.clear();
  std::erase_if(in_use_, [](const InUse& part) { return part.mark.reached(); });
}

bool Arena::resize(Bytes bytes, std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  if (!here_.empty()) return false;
  give_back();
  supply_.release_cached();
  if (limit) bytes = std::min(bytes, *limit - supply_.reserved());
  // A supply may reserve more than it is asked for.
  for (int tries = 0; base_ == nullptr && bytes > 0 && tries < kTries; ++tries, bytes -= kLess) {
    try {
      base_ = supply_.take(static_cast<std::size_t>(bytes)).release_context();
      bytes_ = bytes;
      free_.give(0, bytes);
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
  if (std::this_thread::get_id() != thread_ && !in_backward) return {bytes};
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

void* Arena::take(const Request& request) {
  const std::lock_guard lock(mutex_);
  if (request.step != step_) return nullptr;
  const bool agrees = agrees_with_known(request);
  const Bytes offset = agrees ? (*known_.front())[request.place].offset : kElsewhere;
  if (offset != kElsewhere && serves() && free_.has(offset, request.bytes)) {
    ++placed_;
    return put(request, offset);
  }
  if (agrees || !at_end_) ++elsewhere_;
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

bool Arena::give(const void* data) noexcept {
  const std::lock_guard lock(mutex_);
  if (const auto open = open_.find(data); open != open_.end()) {
    asked_[open->second].until = std::ssize(asked_);
    open_.erase(open);
  }
  const auto block = here_.find(data);
  if (block == here_.end()) return false;
  const Here here = std::move(block->second);
  here_.erase(block);
  try {
    for (const c10::Stream stream : here.used_by) in_use_.push_back({here.offset, here.bytes, StreamMark(stream)});
    if (here.used_by.empty()) supply_.emptied(const_cast<void*>(data), here.bytes, *stream_);
  } catch (const std::exception&) {
    return true;  // nobody knows when those streams are done with it: it is not used again
  }
  free_.give(here.offset, here.bytes);
  return true;
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
