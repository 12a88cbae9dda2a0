#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>

#include "snug/record/seen_version.h"
#include "snug/record/view.h"

namespace snug::record {

/// What backward gets for a saved tensor: the contents of its value, or those that a lossy codec has left (ImageStore).
enum class StandsFor : std::uint8_t { Value, Image };

/// What a saved-tensor hook packed: a view of a value, bound to the version that stands when the operator around the
/// pack has finished.
struct SavedTensor {
  View view;
  c10::Storage storage;  // until it is bound
  SeenVersion version;   // when it was packed
  /// The tensor itself, for nodes that look at more than its contents (identity, attributes, subclass). It is kept
  /// where its storage is the program's anyway: for leaves of the tape that are also leaves of autograd, so that no
  /// graph is kept alive.
  c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl> tensor{
      c10::intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl>()};
  at::Tensor kept_tensor;
  /// What a node has been given, until the node is released. Keeps the storage where the tape has dropped it, and shows
  /// autograd that the tensor is not the node's own: it must not become a .grad as it is.
  at::Tensor handed_out;
  /// Defined once an operator has overwritten this tensor's bytes without raising its version, as batch norm does with
  /// its running statistics. Backward then reads this storage instead of the value, as plain autograd does.
  c10::Storage written;
  /// True once an operator that must raise the version has overwritten this tensor's bytes. Unpacking is an error, even
  /// if the version is unchanged (`.data`, a version that was put back).
  bool written_over = false;
  bool bound = false;
  std::size_t place = 0;  // among those of the tape that are
  StandsFor stands_for = StandsFor::Value;
};

}  // namespace snug::record
