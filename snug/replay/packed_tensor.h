#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "snug/record/tape.h"
#include "snug/replay/wrapped_tensor.h"

namespace snug::replay {

/// What stands in the place of a tensor that autograd saved while a tape recorded: a reference to a value of the tape.
/// The seam between autograd's saved-tensor hooks and the tape. Not movable: the tape knows its address. Packed on the
/// recording thread; unpacked and destroyed on any.
class PackedTensor {
 public:
  PackedTensor(std::shared_ptr<record::Tape> tape, const at::Tensor& tensor);
  ~PackedTensor();
  PackedTensor(const PackedTensor&) = delete;
  PackedTensor& operator=(const PackedTensor&) = delete;

  /// The tensor, outside autograd, made again when it was dropped. May be called any number of times. Throws Error
  /// naming the tensor when it, or something that it is made from, was modified in place since.
  at::Tensor unpack();
  /// The tensor that the program saved, where it still has it, with the contents of `unpacked`; otherwise undefined.
  [[nodiscard]] at::Tensor original(const at::Tensor& unpacked) const;

 private:
  void check_version(plan::ValueId value) const;
  at::Tensor wrap_again();
  /// That it stands for, once they are there.
  c10::Storage contents();

  std::shared_ptr<record::Tape> tape_;
  record::SavedTensor saved_;
  at::Tensor kept_;                       // beyond values
  std::optional<WrappedTensor> wrapped_;  // in place of that: made again of
  std::vector<std::unique_ptr<PackedTensor>> inside_;
  record::SeenVersion kept_version_;  // of either
  bool on_tape_ = false;
  int consumed_in_;
};

}  // namespace snug::replay
