#include "snug/train/team_gradients.h"

#include <algorithm>

namespace snug::train {

TeamGradients::TeamGradients(const std::vector<at::Tensor>& trained, const std::vector<Sum>& sums,
                             const parallel::DataParallelOptions& options) {
  using Leaves = parallel::DataParallelOptions::Leaves;
  for (const Sum& sum : sums) {
    const bool trains = std::ranges::any_of(sum.parameters, [](const at::Tensor& p) { return p.requires_grad(); });
    if (!trains || (sum.over->size() == 1 && options.leaves == Leaves::Gradients)) continue;
    all_.push_back(std::make_unique<parallel::DataParallel>(sum.parameters, sum.over, options));
    std::vector<at::Tensor> own;
    for (const parallel::Shard& shard : all_.back()->shards()) {
      own.push_back(shard.tensor);
      const auto of = std::ranges::find_if(trained, [&](const at::Tensor& p) { return p.is_same(shard.of); });
      shards_.push_back(shard);
      shards_.back().index = static_cast<std::size_t>(of - trained.begin());
    }
    if (sum.copies && sum.copies->size() > 1) {
      parallel::DataParallelOptions whole = options;
      whole.leaves = Leaves::Gradients;
      whole.divided.clear();
      whole.arrived = nullptr;
      over_copies_.push_back(std::make_unique<parallel::DataParallel>(own, sum.copies, whole));
    }
  }
  std::ranges::stable_sort(shards_, {}, &parallel::Shard::index);
}

TeamGradients::Accumulating::Accumulating(TeamGradients& of) {
  for (const auto& one : of.all_) all_.push_back(std::make_unique<parallel::DataParallel::Accumulating>(*one));
}

Bytes TeamGradients::bytes_of_shards(int rank) const {
  Bytes bytes = 0;
  for (const auto& one : all_) bytes += one->bytes_of_shards(rank);
  return bytes;
}

void TeamGradients::hand_in() {
  for (const auto& one : all_) one->hand_in();
}

void TeamGradients::add_up_copies(parallel::Reduction::Purpose purpose) {
  for (const auto& one : over_copies_) one->hand_in(purpose);
}

void TeamGradients::gather(parallel::Reduction::Purpose purpose) {
  for (const auto& one : all_) one->gather(purpose);
}

}  // namespace snug::train
