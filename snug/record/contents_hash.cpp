#include "snug/record/contents_hash.h"

#include <xxhash.h>

#include <ATen/core/grad_mode.h>

namespace snug::record {

std::uint64_t contents_hash(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  at::Tensor plain = tensor.detach();
  if (plain.layout() != c10::kStrided) plain = plain.to_dense();
  plain = plain.resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  return XXH3_64bits(plain.const_data_ptr(), plain.nbytes());
}

}  // namespace snug::record
