#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace snug::memory {

/// What a block of memory is for. Every byte that an allocator hands out carries one tag.
enum class Tag : std::uint8_t {
  Weights,      ///< parameters and buffers of the model
  Gradients,    ///< .grad of the parameters
  Optimizer,    ///< optimizer state
  Activations,  ///< values that the forward pass made: saved tensors and what is still referenced
  Staging,      ///< batches, and values on their way to another tier
  Workspace,    ///< everything else: temporaries inside operators, gradients that flow in backward
};

inline constexpr std::size_t kTags = 6;
inline constexpr std::array<std::string_view, kTags> kTagNames = {"weights",     "gradients", "optimizer",
                                                                  "activations", "staging",   "workspace"};

constexpr std::string_view tag_name(Tag tag) { return kTagNames[static_cast<std::size_t>(tag)]; }

/// The tag that this thread's next allocations get.
Tag current_tag() noexcept;

/// Sets current_tag() for the life of the scope. Scopes nest; each belongs to the thread that made it.
class TagScope {
 public:
  explicit TagScope(Tag tag) noexcept;
  ~TagScope();
  TagScope(const TagScope&) = delete;
  TagScope& operator=(const TagScope&) = delete;

 private:
  Tag previous_;
};

}  // namespace snug::memory
