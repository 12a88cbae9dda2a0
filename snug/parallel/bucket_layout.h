#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "snug/parallel/buckets.h"

namespace snug::parallel {

/// Elements in one piece of a parameter's, in the order in which they are in memory.
struct Piece {
  std::size_t parameter = 0;
  std::int64_t first = 0;  ///< in the parameter
  std::int64_t count = 0;  ///< more than none
  std::int64_t at = 0;     ///< in the part, or the tensor, that it lies in

  bool operator==(const Piece&) const = default;
};

inline constexpr std::int64_t kShardUnit = 256;

/// One parameter that is divided evenly among processes, in parts of whole units, so that the last ones may have less,
/// or none.
struct EvenShards {
  EvenShards(std::int64_t elements, int processes);
  std::int64_t elements;  ///< of the whole
  std::int64_t part;      ///< of each process, what is beyond the whole with it
  int processes;

  [[nodiscard]] std::int64_t first(int rank) const;
  [[nodiscard]] std::int64_t count(int rank) const;
};

/// Elements of each process's part of a bucket: the same ones in every part.
struct Strip {
  std::int64_t first = 0;
  std::int64_t count = 0;

  bool operator==(const Strip&) const = default;
};

/// How a bucket is divided.
enum class Divided : std::uint8_t {
  Not,    ///< but for who adds up which part of it: in elements, and not in units
  Whole,  ///< as a whole: a process may have all of one parameter, and none of another
  Each    ///< each of its parameters: see EvenShards
};

/// Where the elements of a bucket's parameters lie in one flat tensor, which is divided evenly into one part for each
/// process, as ZeRO does (Rajbhandari et al. 2020, arXiv:1910.02054). Each piece of a parameter, and each part, begins
/// at a multiple of kShardUnit elements, so that what is kept of blocks of that many elements is whole in one part.
class BucketLayout {
 public:
  /// `elements`: of all parameters, those of the bucket among them.
  BucketLayout(const std::vector<std::int64_t>& elements, const Bucket& bucket, int processes, Divided divided);

  [[nodiscard]] std::int64_t part() const noexcept { return part_; }
  [[nodiscard]] std::int64_t size() const noexcept { return part_ * processes_; }
  /// Where all of it lies, in the flat tensor's order.
  [[nodiscard]] const std::vector<Piece>& pieces() const noexcept { return pieces_; }
  /// What lies in that process's part, in its order.
  [[nodiscard]] std::vector<Piece> pieces_of(int rank) const { return pieces_of(rank, {0, part_}); }
  /// The same of a strip of that part: `at` is in the strip.
  [[nodiscard]] std::vector<Piece> pieces_of(int rank, const Strip& strip) const;
  /// All of it in strips of about as many elements in all processes together, so that a large parameter needs no memory
  /// as large where it is put together: up to twice as many, in whole units.
  [[nodiscard]] std::vector<Strip> strips(std::int64_t about) const;
  /// Of a parameter that lies there in one piece.
  [[nodiscard]] std::int64_t offset(std::size_t parameter) const;

 private:
  std::vector<Piece> pieces_;
  std::int64_t part_ = 0;
  int processes_;
};

/// What a parameter, or its gradient, has in memory, in one dimension; a view. It must be dense.
at::Tensor flat(const at::Tensor& tensor);

}  // namespace snug::parallel
