#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>

namespace snug::memory {

/// What somebody is about to do with contents.
enum class Access : std::uint8_t { Read, Write };

/// Has the contents of storages that are not always in their device's memory, by number. A storage has no address
/// while they are elsewhere, though it has its device and its size: whoever takes an address, and is no operator that
/// the owner sees, has to hold() them first, see ContentsThere. Any thread.
class ContentsOwner {
 public:
  virtual ~ContentsOwner() = default;
  /// The contents are in the device's memory from here on until release(), for what its current stream, and the host,
  /// are given in between. Throws where there is no room, and Error when they cannot be read.
  virtual void hold(std::int32_t which, Access access) = 0;
  virtual void release(std::int32_t which) noexcept = 0;
  /// The storage is gone.
  virtual void forget(std::int32_t which) noexcept = 0;
};

class TierRoom;

/// Of a storage, as long as it lives.
struct Ownership {
  std::shared_ptr<ContentsOwner> owner;
  std::int32_t which = 0;
  std::shared_ptr<const TierRoom> room = nullptr;  ///< that they are written back to, where it is one
};

/// Returns nullptr for a storage whose contents are its own. Call only while no other thread may call set_address() or
/// take_contents_back() for the storage.
const Ownership* ownership_of(const c10::StorageImpl& storage) noexcept;
/// That of the tensor's storage; nullptr where its contents are its own, or their owner has them in no such room. For
/// threads that know that nobody gives them away or changes them meanwhile.
std::shared_ptr<const TierRoom> room_of(const at::Tensor& tensor);
/// Whether it is over a storage that has an owner: whoever uses many such at once may find no room for all.
bool has_owner(const at::Tensor& tensor) noexcept;
/// The storage has an owner from here on, and no address; what it had as memory goes.
void give_contents(c10::StorageImpl& storage, Ownership to);
/// The contents are at this address now; nullptr: elsewhere. Of a storage that has an owner.
void set_address(c10::StorageImpl& storage, void* address) noexcept;
/// The storage has no owner from here on, who is not told, and this memory.
void take_contents_back(c10::StorageImpl& storage, c10::DataPtr memory) noexcept;

/// For its life the contents of a storage are in its device's memory, whoever owns them.
class ContentsThere {
 public:
  explicit ContentsThere(const c10::Storage& storage, Access access = Access::Read);
  /// Of the tensor's storage, where it has one.
  explicit ContentsThere(const at::Tensor& tensor, Access access = Access::Read);
  ~ContentsThere();
  ContentsThere(const ContentsThere&) = delete;
  ContentsThere& operator=(const ContentsThere&) = delete;

 private:
  c10::Storage storage_;
  std::shared_ptr<ContentsOwner> owner_;
  std::int32_t which_ = 0;
};

}  // namespace snug::memory
