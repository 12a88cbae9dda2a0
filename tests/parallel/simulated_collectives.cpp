// LibTorch's operators of collectives on simulated devices, as the package of an accelerator registers them.
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Op = c10::intrusive_ptr<c10d::ReduceOp>;

std::tuple<std::vector<at::Tensor>, Work> all_reduce(at::TensorList tensors, const Group& group, const Op& how,
                                                     const std::optional<at::Tensor>& /*sparse*/, bool /*is_async*/,
                                                     std::int64_t /*timeout*/) {
  std::vector<at::Tensor> all = tensors.vec();
  const Work work = group->getBackend(kSimulated)->allreduce(all, {.reduceOp = *how});
  return {all, work};
}

std::tuple<std::vector<at::Tensor>, Work> broadcast(at::TensorList tensors, const Group& group, std::int64_t root,
                                                    std::int64_t /*root_tensor*/, bool /*is_async*/,
                                                    std::int64_t /*timeout*/) {
  std::vector<at::Tensor> all = tensors.vec();
  const Work work = group->getBackend(kSimulated)->broadcast(all, {.rootRank = root});
  return {all, work};
}

std::tuple<at::Tensor, Work> reduce_scatter(at::Tensor& mine, at::Tensor& all, const Group& group, const Op& how,
                                            bool /*is_async*/, std::int64_t /*timeout*/) {
  const Work work = group->getBackend(kSimulated)->_reduce_scatter_base(mine, all, {.reduceOp = *how});
  return {mine, work};
}

Work send(at::TensorList tensors, const Group& group, std::int64_t to, std::int64_t tag) {
  std::vector<at::Tensor> all = tensors.vec();
  return group->getBackend(kSimulated)->send(all, static_cast<int>(to), static_cast<int>(tag));
}

Work receive(at::TensorList tensors, const Group& group, std::int64_t from, std::int64_t tag) {
  std::vector<at::Tensor> all = tensors.vec();
  return group->getBackend(kSimulated)->recv(all, static_cast<int>(from), static_cast<int>(tag));
}

TORCH_LIBRARY_IMPL(c10d, HPU, library) {
  library.impl("allreduce_", &all_reduce);
  library.impl("broadcast_", &broadcast);
  library.impl("_reduce_scatter_base_", &reduce_scatter);
  library.impl("send", &send);
  library.impl("recv_", &receive);
}

}  // namespace
}  // namespace snug::testing
