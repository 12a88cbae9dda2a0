#include "snug/parallel/group_agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <utility>

#include "snug/parallel/tensor_group.h"

namespace snug::parallel {
namespace {

class OfGroup final : public Agreement {
 public:
  explicit OfGroup(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  std::vector<Vote> votes(Vote mine) override {
    const at::Tensor vote = at::full({1}, static_cast<int>(mine), at::kByte),
                     all = at::empty({group_->size()}, at::kByte);
    group_->run(AllGather{all, vote});
    std::vector<Vote> votes;
    for (int rank = 0; rank < group_->size(); ++rank)
      votes.push_back(static_cast<Vote>(all.const_data_ptr<std::uint8_t>()[rank]));
    return votes;
  }

  std::string from_first(std::string mine) override {
    const at::Tensor length = at::full({}, static_cast<std::int64_t>(mine.size()), at::kLong);
    group_->run(Broadcast{length, 0});
    mine.resize(static_cast<std::size_t>(length.item<std::int64_t>()));
    if (!mine.empty()) group_->run(Broadcast{at::from_blob(mine.data(), {length.item<std::int64_t>()}, at::kByte), 0});
    return mine;
  }

  bool is_first() const override { return group_->rank() == 0; }

  bool covers_collectives() const override { return tensor_groups_are_within(group_->members()); }

  bool has_collectives() const override { return covers_collectives() && tensor_groups() > 0; }
  void end_collectives() noexcept override {
    if (has_collectives()) end_tensor_groups();
  }

  void largest(std::span<double> numbers) override {
    if (numbers.empty()) return;
    group_->run(AllReduce{at::from_blob(numbers.data(), {std::ssize(numbers)}, at::kDouble), Reduce::Max});
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace

std::shared_ptr<Agreement> agreement_of(std::shared_ptr<ProcessGroup> group) {
  return std::make_shared<OfGroup>(std::move(group));
}

}  // namespace snug::parallel
