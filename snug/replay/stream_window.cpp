#include "snug/replay/stream_window.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/byte_tensor.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/tier_full.h"
#include "snug/memory/tier_room.h"
#include "snug/record/recording_key.h"
#include "snug/record/stream_order.h"

namespace snug::replay {
namespace {

Bytes whole_pages(Bytes bytes) { return WindowSlab::whole_pages(bytes); }

}  // namespace

std::shared_ptr<memory::TierRoom> StreamWindow::room_for(Bytes bytes) {
  const memory::Tier nearest = tiers_->nearest(device_);
  try {
    return std::make_shared<memory::TierRoom>(bytes, device_, *tiers_, nearest);
  } catch (const Error&) {
    if (nearest == memory::Tier::Disk || !tiers_->budgets().disk) throw;
    return std::make_shared<memory::TierRoom>(bytes, device_, *tiers_, memory::Tier::Disk);
  }
}

std::int32_t StreamWindow::add_room(std::shared_ptr<memory::ContentsRoom> room) {
  const Bytes bytes = room->bytes();
  auto streamed = std::make_unique<Streamed>(Streamed{.storage = nullptr, .bytes = bytes, .room = std::move(room)});
  all_.push_back(std::move(streamed));
  totals_.bytes += bytes;
  return book_.add(whole_pages(bytes));
}

void StreamWindow::take(const c10::Storage& storage, std::int32_t which) {
  at(which).room->write(memory::byte_tensor(storage, at(which).bytes)).wait();
  own(storage, which);
}

void StreamWindow::own(const c10::Storage& storage, std::int32_t which) {
  Streamed& s = at(which);
  s.storage = storage.unsafeGetStorageImpl();
  s.weak = storage.getWeakStorageImpl();
  memory::give_contents(*s.storage,
                        {shared_from_this(), which, std::dynamic_pointer_cast<const memory::TierRoom>(s.room)});
}

void StreamWindow::add(const c10::Storage& storage) { add(storage, room_for(static_cast<Bytes>(storage.nbytes()))); }

void StreamWindow::add(const c10::Storage& storage, std::shared_ptr<memory::ContentsRoom> room) {
  const record::Unseen unseen;
  Gone gone;
  const std::lock_guard lock(mutex_);
  const std::int32_t which = add_room(std::move(room));
  try {
    take(storage, which);
  } catch (...) {
    remove(which, gone);
    throw;
  }
}

std::int32_t StreamWindow::reserve(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const std::int32_t which = add_room(room_for(bytes));
  at(which).reserved = true;
  book_.lose(which);
  return which;
}

void StreamWindow::give_up_reserved(std::int32_t which) {
  Gone gone;
  const std::lock_guard lock(mutex_);
  if (all_[static_cast<std::size_t>(which)] == nullptr) return;
  at(which).reserved = false;
  if (at(which).storage == nullptr) remove(which, gone);
}

void StreamWindow::give(const c10::Storage& storage, std::int32_t which) {
  const record::Unseen unseen;
  const std::lock_guard lock(mutex_);
  if (all_[static_cast<std::size_t>(which)] == nullptr || at(which).storage != nullptr)
    throw Error("stream: another tensor has that number");
  const plan::StreamedUse made{which, plan::StreamedUse::Does::Makes};
  uses_.note(made);
  const UsesLog::Aside aside(uses_);
  Streamed& s = at(which);
  try {
    if (const auto place = book_.bring_made(which)) {
      for (const memory::StreamMark& mark : make_room(*place)) record::StreamOrder::let_wait(device_, mark);
      slab_.part(place->offset, s.bytes).copy_(memory::byte_tensor(storage, s.bytes));
      s.dirty = true;
      used_here(s);
      own(storage, which);
    } else {
      take(storage, which);
      totals_.out += s.bytes;
    }
  } catch (...) {
    book_.lose(which);
    throw;
  }
}

void StreamWindow::remove(std::int32_t which, Gone& gone) {
  totals_.bytes -= at(which).bytes;
  uses_.forget(which);
  book_.remove(which);
  gone.push_back(std::move(all_[static_cast<std::size_t>(which)]));
}

void StreamWindow::open(plan::Window window) {
  const record::Unseen unseen;
  {
    const std::lock_guard lock(mutex_);
    empty_window({});
    slab_.open({});
  }
  if (window.bytes == 0) return;
  window.bytes = whole_pages(window.bytes);
  c10::Storage memory = WindowSlab::new_memory(WindowSlab::memory_for(window.bytes), device_);
  const std::lock_guard lock(mutex_);
  slab_.open(std::move(memory));
  book_.resize(window);
}

/// All that was changed is written back.
void StreamWindow::empty_window(plan::Window next) {
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const auto which = static_cast<std::int32_t>(i);
    if (all_[i] != nullptr && book_.inside(which)) leave(which, book_.offset(which));
  }
  book_.resize(next);
  slab_.wait();
}

void StreamWindow::forget_copies() {
  const record::Unseen unseen;
  const std::lock_guard lock(mutex_);
  empty_window(book_.window());
}

bool StreamWindow::takes_gradients(std::int32_t which) const {
  const std::lock_guard lock(mutex_);
  return all_[static_cast<std::size_t>(which)]->room->takes_gradients();
}

void StreamWindow::check_room_for_all() const {
  const memory::DeviceMemory& memory = memory::device_memory(device_);
  const memory::Stats stats = memory.stats();
  if (!stats.limit) return;
  const std::lock_guard lock(mutex_);
  Bytes all = 0;
  for (const auto& s : all_) all += s && s->storage != nullptr ? memory.rounded(s->bytes) : 0;
  const Bytes window = book_.window().bytes;
  const Bytes room = *stats.limit - stats.allocated + (window > 0 ? memory.rounded(WindowSlab::memory_for(window)) : 0);
  if (all <= room) return;
  throw UsageError(
      fmt::format("stream: {} cannot come back within the budget of {}, which has room for {}: close the session that "
                  "holds it first",
                  format_bytes(all), format_bytes(*stats.limit), format_bytes(std::max<Bytes>(room, 0))));
}

void StreamWindow::bring_back() {
  const record::Unseen unseen;
  check_room_for_all();
  open({});
  for (std::size_t i = 0; i < all_.size(); ++i) {
    Bytes bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      if (all_[i] == nullptr || all_[i]->storage == nullptr) continue;
      bytes = all_[i]->bytes;
    }
    const c10::Storage fresh = WindowSlab::new_memory(bytes, device_);
    Gone gone;
    c10::intrusive_ptr<c10::StorageImpl> storage;
    const std::lock_guard lock(mutex_);
    if (all_[i] == nullptr || all_[i]->storage == nullptr) continue;
    storage = all_[i]->weak->lock();
    if (!storage) continue;  // another thread is about to tell that
    all_[i]->room->read_now(memory::byte_tensor(fresh, bytes));
    memory::take_contents_back(*storage, std::move(fresh.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
    remove(static_cast<std::int32_t>(i), gone);
  }
  Gone gone;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (all_[i] != nullptr && all_[i]->storage == nullptr) remove(static_cast<std::int32_t>(i), gone);
  }
}

/// From where it was, or is; the book is for the caller.
void StreamWindow::leave(std::int32_t which, Bytes offset) {
  Streamed& s = at(which);
  memory::set_address(*s.storage, nullptr);
  // What other streams have been given with it comes first.
  for (const c10::Stream stream : std::exchange(s.streams, {}))
    memory::StreamMark(stream).let_wait(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  slab_.goes_on(offset, s.bytes, std::exchange(s.arriving, {}));
  if (!std::exchange(s.dirty, false)) return;
  totals_.out += s.bytes;
  slab_.goes_on(offset, s.bytes, s.room->write(slab_.part(offset, s.bytes)));
}

/// Those leave that are in its place. Returns what goes on there.
std::vector<memory::StreamMark> StreamWindow::make_room(const plan::WindowBook::Place& place) {
  for (const auto& [other, offset] : place.leave) leave(other, offset);
  return slab_.going_on(place.offset, at(place.tensor).bytes);
}

/// It is on its way; where it throws, elsewhere.
void StreamWindow::come(const plan::WindowBook::Place& place) {
  Streamed& s = at(place.tensor);
  try {
    s.arriving = s.room->read(slab_.part(place.offset, s.bytes), make_room(place));
  } catch (...) {
    book_.take_back(place.tensor);
    throw;
  }
  totals_.in += s.bytes;
  ++totals_.came;
}

void StreamWindow::forget(std::int32_t which) noexcept {
  const record::Unseen unseen;
  Gone gone;
  const std::lock_guard lock(mutex_);
  Streamed& s = at(which);
  // Copies may still go on, of its room or its place.
  for (const memory::StreamMark& mark : {s.room->written(), s.arriving}) {
    try {
      mark.wait();
      for (const c10::Stream stream : s.streams) memory::StreamMark(stream).wait();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nobody wants the contents any more
    }
  }
  s.storage = nullptr;  // which may be about to have other memory
  s.weak.reset();
  while (s.users > 0) end_one(which);  // an operator's last reference was its own
  if (!s.reserved) return remove(which, gone);
  book_.lose(which);
  s.dirty = false;
  s.arriving = {};
  s.streams.clear();
}

void StreamWindow::next_step(StepKind kind) {
  const std::lock_guard lock(mutex_);
  if (const std::vector<plan::StreamedUse>& order = uses_.next_step(kind); !order.empty()) book_.expect(order);
  book_.restart();
}

void StreamWindow::add_if_there_is_room(const c10::Storage& storage) {
  try {
    add(storage);
  } catch (const memory::TierFull&) {
    const std::lock_guard lock(mutex_);
    totals_.without_room += static_cast<Bytes>(storage.nbytes());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it cannot be written, and is as before
  }
}

std::vector<Bytes> StreamWindow::places() const {
  const std::lock_guard lock(mutex_);
  std::vector<Bytes> bytes;
  for (const auto& s : all_) bytes.push_back(s ? whole_pages(s->bytes) : 0);
  return bytes;
}

StreamWindow::Totals StreamWindow::totals() const {
  const std::lock_guard lock(mutex_);
  Totals totals = totals_;
  totals.most_at_once = uses_.at_once();
  for (const auto& s : all_) {
    if (s != nullptr) totals.on_disk += s->room->on_disk();
  }
  return totals;
}

bool StreamWindow::is_free(std::int32_t which, Bytes bytes) const {
  const std::lock_guard lock(mutex_);
  const auto& s = all_[static_cast<std::size_t>(which)];
  return s && s->reserved && s->bytes == bytes && s->storage == nullptr;
}

plan::Window StreamWindow::window() const {
  const std::lock_guard lock(mutex_);
  return book_.window();
}

}  // namespace snug::replay
