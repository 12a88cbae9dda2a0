#include "snug/state/divided_tensors.h"

#include "snug/memory/owned_contents.h"

namespace snug::state {

TensorSource source_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec(),
          [tensor](const std::function<void(std::span<const std::byte>)>& write) {
            const at::Tensor whole = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
            const memory::ContentsThere there(whole.storage());
            write({static_cast<const std::byte*>(whole.const_data_ptr()), whole.nbytes()});
          }};
}

}  // namespace snug::state
