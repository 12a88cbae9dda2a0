#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace snug::ops {

/// Processes that have parts of the same layers (tensor parallel: Shoeybi et al. 2019, arXiv:1909.08053), as layers see
/// them; parallel::tensor_group() makes one. All of them do the same in the same order, with tensors of the same type
/// and sizes, which may lie in memory in any way. What comes back is new, dense, and the same bits whatever carries it:
/// elements are added up in the order of the ranks. Throws what ends a collective.
class TensorGroup {
 public:
  /// `rank` among `size`.
  TensorGroup(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~TensorGroup() = default;
  TensorGroup(const TensorGroup&) = delete;
  TensorGroup& operator=(const TensorGroup&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// The sum of what all have.
  [[nodiscard]] virtual at::Tensor sum(const at::Tensor& mine) = 0;
  /// The largest of what all have, element by element.
  [[nodiscard]] virtual at::Tensor max(const at::Tensor& mine) = 0;
  /// What all have, one behind the other along that dimension.
  [[nodiscard]] virtual at::Tensor gather(const at::Tensor& mine, std::int64_t dimension) = 0;
  /// Part `rank` of the sum of what all have, which is divided evenly along that dimension.
  [[nodiscard]] virtual at::Tensor sum_part(const at::Tensor& mine, std::int64_t dimension) = 0;
  /// What the process before has, and the first one what the last has.
  [[nodiscard]] virtual at::Tensor shift(const at::Tensor& mine) = 0;
  /// Part `rank` of what each has along `divided`, one behind the other along `gathered`.
  [[nodiscard]] virtual at::Tensor exchange(const at::Tensor& mine, std::int64_t divided, std::int64_t gathered) = 0;
  /// `whole`, which is there and of which all have one `part` of each, dense and behind one another: of one dimension.
  /// Where a step is replayed it is gathered.
  [[nodiscard]] virtual at::Tensor gather_again(const at::Tensor& part, const at::Tensor& whole) = 0;

 private:
  int rank_, size_;
};

}  // namespace snug::ops
