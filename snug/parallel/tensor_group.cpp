#include "snug/parallel/tensor_group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "snug/base/errors.h"
#include "snug/parallel/kept_parts.h"
#include "snug/parallel/reduction.h"
#include "snug/record/unseen.h"

namespace snug::parallel {
namespace {

enum class What : std::uint8_t { Sum, Max, Gather, SumPart, Exchange, Shift };

at::Tensor max_of(ProcessGroup& group, const at::Tensor& mine) {
  at::Tensor all = mine.clone(at::MemoryFormat::Contiguous);
  group.run(AllReduce{all, Reduce::Max});
  return all;
}

/// Its parts along that dimension, one behind the other.
at::Tensor parts_of(const ProcessGroup& group, const at::Tensor& mine, std::int64_t dimension) {
  if (mine.size(dimension) % group.size() != 0) {
    throw UsageError(
        fmt::format("tensor parallel: {} along dimension {} of {} cannot be divided evenly among {} processes",
                    mine.size(dimension), dimension, c10::str(mine.sizes()), group.size()));
  }
  return mine.unflatten(dimension, {std::int64_t{group.size()}, std::int64_t{-1}}).movedim(dimension, 0).contiguous();
}

at::Tensor exchanged(ProcessGroup& group, const at::Tensor& mine, std::int64_t divided, std::int64_t gathered) {
  const at::Tensor sent = parts_of(group, mine, divided), received = at::empty_like(sent);
  group.run(AllToAll{received, sent});
  return received.movedim(0, gathered).flatten(gathered, gathered + 1).contiguous();
}

at::Tensor part_of_sum(ProcessGroup& group, const at::Tensor& mine, std::int64_t dimension) {
  const at::Tensor sent = parts_of(group, mine, dimension);
  const at::Tensor received = at::empty_like(sent);
  group.run(AllToAll{received, sent});
  at::Tensor sum = group.size() == 1 ? received[0].clone() : at::add(received[0], received[1]);
  for (int rank = 2; rank < group.size(); ++rank) sum.add_(received[rank]);
  return sum;
}

at::Tensor from_before(ProcessGroup& group, const at::Tensor& mine) {
  const int size = group.size();
  if (size == 1) return mine.clone(at::MemoryFormat::Contiguous);
  const at::Tensor sent = mine.contiguous();
  at::Tensor received = at::empty_like(sent);
  ProcessGroup::Begun leaves = group.begin(Send{sent, (group.rank() + 1) % size});
  group.run(Receive{received, (group.rank() + size - 1) % size});
  leaves.wait();
  return received;
}

/// Groups by number, which is what an operator can be given.
struct Numbered {
  std::mutex mutex;
  std::map<std::int64_t, std::shared_ptr<ProcessGroup>> groups;
  std::int64_t next = 0;
};
Numbered& numbered() {
  static auto* const all = new Numbered;  // NOLINT: until the process ends
  return *all;
}

std::shared_ptr<ProcessGroup> group_of(std::int64_t number) {
  const std::scoped_lock lock(numbered().mutex);
  const auto found = numbered().groups.find(number);
  if (found == numbered().groups.end()) {
    throw Error(
        "tensor parallel: a group of layers is no more, and what it has made is asked for again; keep it as long as "
        "steps that use it have not gone backward");
  }
  return found->second;
}

/// What it does on its way is no part of the step either.
at::Tensor together(const at::Tensor& mine, std::int64_t group, std::int64_t what, std::int64_t dimension,
                    std::int64_t other_dimension) {
  const record::Unseen unseen;
  const std::shared_ptr<ProcessGroup> processes = group_of(group);
  switch (static_cast<What>(what)) {
    case What::Sum:
      return sum_by_rank(*processes, mine);
    case What::Max:
      return max_of(*processes, mine);
    case What::Gather:
      return gathered(*processes, mine, dimension);
    case What::SumPart:
      return part_of_sum(*processes, mine, dimension);
    case What::Exchange:
      return exchanged(*processes, mine, dimension, other_dimension);
    case What::Shift:
      return from_before(*processes, mine);
  }
  throw std::logic_error("parallel: unknown collective of layers");
}

/// That a part is of, while what is there already is asked for as if it had to be gathered.
struct There {
  const at::Tensor& part;
  const at::Tensor& whole;
  KeptParts& kept;
};
thread_local const There* there = nullptr;

at::Tensor gather_again(const at::Tensor& part, std::int64_t group) {
  const record::Unseen unseen;
  const std::shared_ptr<ProcessGroup> processes = group_of(group);
  // What is replayed meanwhile is not there.
  return there != nullptr && there->part.is_same(part) ? there->kept.whole_of(*processes, part, there->whole)
                                                       : gathered(*processes, part);
}

class GroupOfLayers final : public ops::TensorGroup {
 public:
  explicit GroupOfLayers(std::shared_ptr<ProcessGroup> group) : TensorGroup(group->rank(), group->size()) {
    const std::scoped_lock lock(numbered().mutex);
    number_ = numbered().next++;
    numbered().groups.emplace(number_, std::move(group));
  }
  ~GroupOfLayers() override {
    const std::scoped_lock lock(numbered().mutex);
    numbered().groups.erase(number_);
  }
  GroupOfLayers(const GroupOfLayers&) = delete;
  GroupOfLayers& operator=(const GroupOfLayers&) = delete;

  at::Tensor sum(const at::Tensor& mine) override { return call(mine, What::Sum, 0); }
  at::Tensor max(const at::Tensor& mine) override { return call(mine, What::Max, 0); }
  at::Tensor gather(const at::Tensor& mine, std::int64_t dimension) override {
    return call(mine, What::Gather, dimension);
  }
  at::Tensor sum_part(const at::Tensor& mine, std::int64_t dimension) override {
    return call(mine, What::SumPart, dimension);
  }
  at::Tensor shift(const at::Tensor& mine) override { return call(mine, What::Shift, 0); }
  at::Tensor exchange(const at::Tensor& mine, std::int64_t divided, std::int64_t gathered) override {
    return call(mine, What::Exchange, divided, gathered);
  }
  at::Tensor gather_again(const at::Tensor& part, const at::Tensor& whole) override {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("snug_collective::gather_again", "")
                               .typed<decltype(parallel::gather_again)>();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const There now{part, whole, kept_};
    const There* const before = std::exchange(there, &now);
    const auto restore = c10::make_scope_exit([before] { there = before; });
    return op.call(part, number_);
  }

 private:
  at::Tensor call(const at::Tensor& mine, What what, std::int64_t dimension, std::int64_t other_dimension = 0) const {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("snug_collective::together", "").typed<decltype(together)>();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return op.call(mine, number_, static_cast<std::int64_t>(what), dimension, other_dimension);
  }
  std::int64_t number_ = 0;
  KeptParts kept_;
};

TORCH_LIBRARY(snug_collective, library) {
  library.def("together(Tensor mine, int group, int what, int dimension, int other_dimension) -> Tensor");
  library.def("gather_again(Tensor part, int group) -> Tensor");
}
TORCH_LIBRARY_IMPL(snug_collective, CompositeExplicitAutograd, library) {
  library.impl("together", together);
  library.impl("gather_again", gather_again);
}

}  // namespace

std::size_t tensor_groups() {
  const std::scoped_lock lock(numbered().mutex);
  return numbered().groups.size();
}

void end_tensor_groups() noexcept {
  const std::scoped_lock lock(numbered().mutex);
  for (const auto& [number, group] : numbered().groups) group->end();
}

bool tensor_groups_are_within(const std::vector<int>& members) {
  const std::scoped_lock lock(numbered().mutex);
  return std::ranges::all_of(numbered().groups, [&](const auto& numbered_group) {
    return std::ranges::all_of(numbered_group.second->members(),
                               [&](int member) { return std::ranges::find(members, member) != members.end(); });
  });
}

std::shared_ptr<ops::TensorGroup> tensor_group(std::shared_ptr<ProcessGroup> group) {
  return std::make_shared<GroupOfLayers>(std::move(group));
}

}  // namespace snug::parallel
