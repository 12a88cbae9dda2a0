#include "snug/memory/owned_contents.h"

#include <mutex>
#include <utility>

namespace snug::memory {
namespace {

/// Of what storages say of their owners: one thread may ask while another gives an address.
std::mutex& ownerships() {
  static std::mutex mutex;
  return mutex;
}

/// A storage's deleter, by which it is known.
void gone(void* context) {
  const std::unique_ptr<Ownership> ownership(static_cast<Ownership*>(context));
  ownership->owner->forget(ownership->which);
}

}  // namespace

const Ownership* ownership_of(const c10::StorageImpl& storage) noexcept {
  const c10::DataPtr& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data.get_deleter() == &gone ? static_cast<const Ownership*>(data.get_context()) : nullptr;
}

std::shared_ptr<const TierRoom> room_of(const at::Tensor& tensor) {
  const std::lock_guard lock(ownerships());
  const Ownership* const ownership = ownership_of(*tensor.storage().unsafeGetStorageImpl());
  if (ownership == nullptr || !ownership->room) return nullptr;
  const auto both = std::make_shared<const Ownership>(*ownership);  // the owner has the tiers
  return {both, both->room.get()};
}

bool has_owner(const at::Tensor& tensor) noexcept {
  if (!tensor.defined() || !tensor.has_storage()) return false;
  const std::lock_guard lock(ownerships());
  return ownership_of(*tensor.storage().unsafeGetStorageImpl()) != nullptr;
}

void give_contents(c10::StorageImpl& storage, Ownership to) {
  auto context = std::make_unique<Ownership>(std::move(to));
  storage.set_data_ptr_noswap({nullptr, context.release(), &gone, storage.device()});
}

void set_address(c10::StorageImpl& storage, void* address) noexcept {
  const std::lock_guard lock(ownerships());
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  const c10::Device device = data.device();
  void* const context = data.release_context();
  storage.set_data_ptr_noswap({address, context, &gone, device});
}

void take_contents_back(c10::StorageImpl& storage, c10::DataPtr memory) noexcept {
  std::unique_ptr<Ownership> ownership;  // after the lock, as its owner may go with it
  const std::lock_guard lock(ownerships());
  ownership.reset(static_cast<Ownership*>(storage._mutable_data_ptr_no_checks().release_context()));
  storage.set_data_ptr_noswap(std::move(memory));
}

ContentsThere::ContentsThere(const c10::Storage& storage, Access access) : storage_(storage) {
  if (!storage) return;
  std::shared_ptr<ContentsOwner> owner;
  {
    const std::lock_guard lock(ownerships());
    const Ownership* const ownership = ownership_of(*storage.unsafeGetStorageImpl());
    if (ownership == nullptr) return;
    owner = ownership->owner;
    which_ = ownership->which;
  }
  owner->hold(which_, access);
  owner_ = std::move(owner);
}

ContentsThere::ContentsThere(const at::Tensor& tensor, Access access)
    : ContentsThere(tensor.has_storage() ? tensor.storage() : c10::Storage(), access) {}

ContentsThere::~ContentsThere() {
  if (owner_) owner_->release(which_);
}

}  // namespace snug::memory
