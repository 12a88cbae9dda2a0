#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

// How codecs of tensors (tensor_codec.h) go through them.
namespace snug::memory {

/// work(first, how many) for pieces of so many numbers: each but the last a multiple of 1024.
template <class Work>
void for_pieces(std::int64_t numbers, const Work& work) {
  constexpr std::int64_t kPieces = 16, kSmallest = 256 * 1024, kWhole = 1024;
  const std::int64_t sixteenth = (numbers + kPieces - 1) / kPieces;
  const std::int64_t piece = (std::max(sixteenth, kSmallest) + kWhole - 1) / kWhole * kWhole;
  for (std::int64_t first = 0; first < numbers; first += piece) work(first, std::min(piece, numbers - first));
}

/// Numbers of a tensor of bytes, from byte `begin` on, which is a multiple of their size.
inline at::Tensor numbers_of(const at::Tensor& bytes, c10::ScalarType type, std::int64_t begin, std::int64_t count) {
  const auto size = static_cast<std::int64_t>(c10::elementSize(type));
  return bytes.narrow(0, begin, count * size).view(type);
}

/// Whether contents can be written so, as the device finds out.
class Fits {
 public:
  /// `holds`: one truth value, on the device.
  void only_if(const at::Tensor& holds) { all_ = all_.defined() ? all_.logical_and(holds) : holds; }
  /// The host waits.
  [[nodiscard]] bool told() const { return !all_.defined() || all_.item<bool>(); }

 private:
  at::Tensor all_;
};

}  // namespace snug::memory
