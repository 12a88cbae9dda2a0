// What is in use of a StreamWindow.
#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "snug/memory/byte_tensor.h"
#include "snug/record/stream_order.h"
#include "snug/replay/stream_window.h"

namespace snug::replay {

/// Of an accelerator, in its current stream.
void StreamWindow::used_here(Streamed& s) const {
  if (device_.is_cpu()) return;
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  if (std::ranges::find(s.streams, stream) == s.streams.end()) s.streams.push_back(stream);
}

/// It has no place in the window, and takes memory of its own.
void StreamWindow::bring_outside(std::int32_t which, std::unique_lock<std::mutex>& lock) {
  const Bytes bytes = at(which).bytes;
  lock.unlock();  // making room may take long, and other locks
  c10::Storage memory = WindowSlab::new_memory(bytes, device_);
  lock.lock();
  Streamed& s = at(which);
  if (s.outside || book_.inside(which)) return;  // another thread has brought it
  s.room->read_now(memory::byte_tensor(memory, bytes));
  s.outside = std::move(memory);
  book_.stay_out(which);
  totals_.in += bytes;
  ++totals_.outside;
}

void StreamWindow::begin_one(std::int32_t which, std::unique_lock<std::mutex>& lock) {
  if (!at(which).outside && !book_.inside(which)) {
    if (const auto place = book_.bring(which)) {
      come(*place);
    } else {
      bring_outside(which, lock);
    }
  }
  Streamed& s = at(which);
  ++s.users;
  if (!s.outside) book_.begin_use(which);
  in_use_ += s.users == 1 ? book_.bytes(which) : 0;
}

void StreamWindow::end_one(std::int32_t which) noexcept {
  if (all_[static_cast<std::size_t>(which)] == nullptr) return;
  Streamed& s = at(which);
  if (s.users == 0) return;  // it has died meanwhile
  --s.users;
  if (!s.outside) book_.end_use(which);
  if (s.users > 0) return;
  in_use_ -= book_.bytes(which);
  if (s.storage != nullptr) memory::set_address(*s.storage, nullptr);  // nobody may write there unseen
  if (!s.outside) return;
  try {
    if (std::exchange(s.dirty, false)) {
      totals_.out += s.bytes;
      s.room->write(memory::byte_tensor(s.outside, s.bytes)).wait();
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): whoever reads it next is told
  }
  s.outside = c10::Storage();
  book_.may_come(which);
}

/// Where one of them would have no place beside the others, though all together have room: side by side, in the place
/// of all that is not in use. None of them may be.
void StreamWindow::bring_together(std::span<const plan::StreamedUse> uses) {
  std::vector<plan::StreamedId> tensors;
  for (const plan::StreamedUse& use : uses) {
    if (book_.inside(use.tensor)) {
      leave(use.tensor, book_.offset(use.tensor));
      book_.take_back(use.tensor);
    }
    tensors.push_back(use.tensor);
  }
  for (const plan::StreamedId tensor : tensors) {
    if (const auto place = book_.bring_beside(tensor, tensors)) come(*place);
  }
}

bool StreamWindow::have_room_together(std::span<const plan::StreamedUse> uses) {
  const auto bytes = [&](Bytes sum, const plan::StreamedUse& use) { return sum + book_.bytes(use.tensor); };
  const auto is_free = [&](const plan::StreamedUse& use) { return at(use.tensor).users == 0; };
  return std::ranges::all_of(uses, is_free) &&
         std::accumulate(uses.begin(), uses.end(), Bytes{0}, bytes) <= book_.window().bytes;
}

/// Those that have places, or can have them. Returns whether all have.
bool StreamWindow::begin_inside(std::span<const plan::StreamedUse> uses, std::unique_lock<std::mutex>& lock,
                                std::vector<std::int32_t>& begun) {
  // Those that are there first, so that none of them leaves for another.
  for (const bool there : {true, false}) {
    for (const plan::StreamedUse& use : uses) {
      const bool is_there = book_.inside(use.tensor) || at(use.tensor).outside;
      if ((there && !is_there) || std::ranges::find(begun, use.tensor) != begun.end()) continue;
      if (!is_there && !book_.has_place_for(use.tensor)) return false;
      begin_one(use.tensor, lock);
      begun.push_back(use.tensor);
    }
  }
  return true;
}

void StreamWindow::begin_all(std::span<const plan::StreamedUse> uses, std::unique_lock<std::mutex>& lock,
                             std::vector<std::int32_t>& begun) {
  const bool may_move = have_room_together(uses);
  if (begin_inside(uses, lock, begun)) return;
  if (may_move) {
    for (const std::int32_t which : std::exchange(begun, {})) end_one(which);
    bring_together(uses);
    if (begin_inside(uses, lock, begun)) return;
  }
  for (const plan::StreamedUse& use : uses) {
    if (std::ranges::find(begun, use.tensor) != begun.end()) continue;
    begin_one(use.tensor, lock);
    begun.push_back(use.tensor);
  }
}

/// For their use: it has begun.
void StreamWindow::bring(std::span<const plan::StreamedUse> uses, std::unique_lock<std::mutex>& lock) {
  std::vector<std::int32_t> begun;
  try {
    begin_all(uses, lock, begun);
    for (const plan::StreamedUse& use : uses) book_.used(use.tensor);
    while (const auto ahead = book_.bring_ahead()) {
      come(*ahead);
      ++totals_.came_ahead;
    }
    for (const plan::StreamedUse& use : uses) arrive(use);
  } catch (...) {
    for (const std::int32_t which : begun) end_one(which);
    for (const std::int32_t which : begun) {
      if (at(which).lost) give_up(which);
    }
    throw;
  }
  uses_.note_at_once(in_use_);
}

/// Its contents are there for the device's current stream.
void StreamWindow::arrive(const plan::StreamedUse& use) {
  Streamed& s = at(use.tensor);
  s.lost = true;
  record::StreamOrder::let_wait(device_, s.arriving);
  s.lost = false;
  if (s.arriving.reached()) s.arriving = {};  // until then other streams wait, too
  s.dirty |= use.changes();
  used_here(s);
  void* const there =
      s.outside ? s.outside.mutable_data() : slab_.part(book_.offset(use.tensor), s.bytes).mutable_data_ptr();
  memory::set_address(*s.storage, there);
}

/// What could not be read has no place, and is read again when it is asked for again.
void StreamWindow::give_up(std::int32_t which) {
  at(which).lost = false;
  at(which).arriving = {};
  if (book_.inside(which)) book_.take_back(which);
}

void StreamWindow::begin(std::span<const plan::StreamedUse> uses) {
  const record::Unseen unseen;
  std::unique_lock lock(mutex_);
  {
    const UsesLog::Aside aside(uses_);
    bring(uses, lock);
  }
  for (const plan::StreamedUse& use : uses) uses_.note(use);
}

void StreamWindow::end(std::span<const plan::StreamedUse> uses) noexcept {
  const record::Unseen unseen;
  const std::lock_guard lock(mutex_);
  const UsesLog::Aside aside(uses_);
  for (const plan::StreamedUse& use : uses) end_one(use.tensor);
}

void StreamWindow::hold(std::int32_t which, memory::Access access) {
  using Does = plan::StreamedUse::Does;
  const plan::StreamedUse use{which, access == memory::Access::Write ? Does::Writes : Does::Reads};
  begin({&use, 1});
  record::StreamOrder::finish(device_);  // for the host, too
}

void StreamWindow::release(std::int32_t which) noexcept {
  const plan::StreamedUse use{which};
  end({&use, 1});
}

}  // namespace snug::replay
