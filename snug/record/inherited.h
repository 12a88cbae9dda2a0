#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

#include <memory>
#include <string_view>

namespace snug::record {

/// Something of a thread that autograd's own threads have too while they run a backward pass that it has started, as
/// those of accelerators do: LibTorch hands it on with the rest of at::ThreadLocalState. `Slot` has a name, of static
/// storage, and a number that no other slot of LibTorch has.
template <class T, class Slot>
class Inherited {
 public:
  /// The calling thread's, or, in a backward pass, that of the thread that started it; null: there is none.
  static T* get() noexcept {
    auto* const holder = static_cast<Holder*>(c10::ThreadLocalDebugInfo::get(kind()));
    return holder != nullptr ? holder->what.get() : nullptr;
  }
  static std::shared_ptr<T> shared() noexcept {
    auto* const holder = static_cast<Holder*>(c10::ThreadLocalDebugInfo::get(kind()));
    return holder != nullptr ? holder->what : nullptr;
  }

  /// It is this thread's until pop(), and that of the autograd threads which run a backward pass that it starts
  /// meanwhile. Scopes of LibTorch that use the same stack (profilers) must begin and end inside or outside of the two.
  static void push(std::shared_ptr<T> what) {
    auto holder = std::make_shared<Holder>();
    holder->what = std::move(what);
    c10::ThreadLocalDebugInfo::_push(kind(), std::move(holder));
  }
  static void pop() { c10::ThreadLocalDebugInfo::_pop(kind()); }

 private:
  struct Holder final : c10::DebugInfoBase {
    std::shared_ptr<T> what;
  };

  static c10::DebugInfoKind kind() {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
    return c10::DebugInfoKind(&Slot::kName);
#else
    return static_cast<c10::DebugInfoKind>(Slot::kNumber);
#endif
  }
};

}  // namespace snug::record
