#include "snug/parallel/reduction.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

namespace snug::parallel {

ProcessGroup::Begun Reduction::handed_in(const Collective& what) {
  return purpose_ == Purpose::Sums ? group_.begin(what) : ProcessGroup::Begun();
}

Reduction::Reduction(ProcessGroup& group, at::Tensor tensor, Order order, Purpose purpose)
    : group_(group), purpose_(purpose), tensor_(std::move(tensor)) {
  const at::NoGradGuard no_grad;
  if (order == Order::Anyhow || group.size() == 1) {
    begun_ = handed_in(AllReduce{tensor_});
    return;
  }
  received_ = at::empty_like(tensor_);
  begun_ = handed_in(AllToAll{received_, tensor_});
}

void Reduction::advance() {
  if (!received_.defined() || received_.dim() == 2) return;
  const at::NoGradGuard no_grad;
  begun_.wait();
  received_ = received_.view({group_.size(), -1});
  const at::Tensor sum = received_[0];
  for (int rank = 1; rank < group_.size(); ++rank) sum.add_(received_[rank]);
  begun_ = handed_in(AllGather{tensor_, sum});
}

void Reduction::finish() {
  advance();
  begun_.wait();
  received_ = at::Tensor();
}

at::Tensor sum_by_rank(ProcessGroup& group, const at::Tensor& mine) {
  const at::NoGradGuard no_grad;
  const std::int64_t count = mine.numel(), size = group.size();
  const std::int64_t whole = (count + size - 1) / size * size;
  at::Tensor all = at::empty({whole}, mine.options());
  all.narrow(0, 0, count).view(mine.sizes()).copy_(mine);
  all.narrow(0, count, whole - count).zero_();
  Reduction(group, all, Order::ByRank, Reduction::Purpose::Sums).finish();
  return whole == count ? all.view(mine.sizes()) : all.narrow(0, 0, count).clone().view(mine.sizes());
}

}  // namespace snug::parallel
