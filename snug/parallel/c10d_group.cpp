#include "snug/parallel/c10d_group.h"

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <limits>
#include <stdexcept>
#include <thread>
#include <utility>

#include "snug/base/match.h"

namespace snug::parallel {
namespace {

c10d::ReduceOp reduce_op(Reduce how) {
  switch (how) {
    case Reduce::Sum:
      return c10d::ReduceOp::SUM;
    case Reduce::Max:
      return c10d::ReduceOp::MAX;
    case Reduce::Min:
      return c10d::ReduceOp::MIN;
  }
  throw std::logic_error("parallel: unknown reduction");
}

// LibTorch 2.13 has another name for it.
template <class Group>
c10::intrusive_ptr<c10d::Work> reduce_into(Group& group, at::Tensor mine, at::Tensor all,
                                           const c10d::ReduceScatterOptions& options) {
  if constexpr (requires { group.reduce_scatter_single(mine, all, options); }) {
    return group.reduce_scatter_single(mine, all, options);
  } else {
    return group._reduce_scatter_base(mine, all, options);
  }
}

/// By a thread of its own, as that may wait for other processes; where there can be none it stays.
template <class Held>
void let_go_apart(Held held) noexcept {
  try {
    auto* const all = new Held(std::move(held));  // NOLINT(cppcoreguidelines-owning-memory)
    std::thread([all] { delete all; }).detach();  // NOLINT(cppcoreguidelines-owning-memory)
  } catch (...) {                                 // NOLINT(bugprone-empty-catch): others find out by their timeout
  }
}

}  // namespace

class C10dGroup::Waited final : public Pending {
 public:
  Waited(Works works, std::optional<std::chrono::milliseconds> patience, std::shared_ptr<std::atomic<bool>> are_kept)
      : works_(std::move(works)), patience_(patience), are_kept_(std::move(are_kept)) {}
  void wait() override {
    for (Work& work : works_) {
      if (!work) continue;
      patience_ ? work->wait(*patience_) : work->wait();
      // Gloo's thread lets go of it, and so of its tensors, a little later: what a step takes would depend on when.
      if (!*are_kept_) *are_kept_ = !is_let_go(work);
      work.reset();
    }
  }

  // Gloo's buffers may block until the other process has done its part, and hold connections that are to be closed.
  void abandon() noexcept override { let_go_apart(std::move(works_)); }

 private:
  /// Within a second. A profiler may keep all works of the group for good: the first one tells.
  static bool is_let_go(const Work& work) {
    const auto now = std::chrono::steady_clock::now;
    const auto began = now();
    while (work.use_count() > 1 && now() - began < std::chrono::seconds(1)) {
      // It takes microseconds, unless Gloo's thread has no core to run on.
      if (now() - began < std::chrono::milliseconds(1)) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return work.use_count() <= 1;
  }

  Works works_;
  std::optional<std::chrono::milliseconds> patience_;
  std::shared_ptr<std::atomic<bool>> are_kept_;
};

C10dGroup::C10dGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<RollCall> roll, int rank,
                     const std::vector<int>& members, std::optional<std::chrono::milliseconds> patience)
    : ProcessGroup(rank, static_cast<int>(members.size()), members),
      group_(std::move(group)),
      roll_(std::move(roll)),
      patience_(patience) {}

C10dGroup::~C10dGroup() {
  if (has_failed() && group_) (void)group_.release();  // it would wait for its threads, and those for others
}

std::unique_ptr<Pending> C10dGroup::start(const Collective& what) {
  const at::NoGradGuard no_grad;
  return std::make_unique<Waited>(std::visit(Match{[&](const auto& c) { return of(c); }}, what), patience_, are_kept_);
}

void C10dGroup::disconnect() noexcept {
  if (roll_) roll_->begin_to_leave();
  close();
}

std::string C10dGroup::who_is_missing() noexcept {
  // Who waits for this process, and not for one that is missing, notices that now.
  close();
  return roll_ ? roll_->missing(members()) : std::string();
}

/// Its connections are closed with it, unless others have it, too, as all of a channel.
void C10dGroup::close() noexcept { let_go_apart(std::move(group_)); }

C10dGroup::Works C10dGroup::of(const AllReduce& c) {
  std::vector<at::Tensor> tensors{c.tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = reduce_op(c.how);
  return {group_->allreduce(tensors, options)};
}

// Gloo's own all-gather takes as much memory again as what is gathered; by pairs none is taken.
C10dGroup::Works C10dGroup::of(const AllGather& c) {
  return by_pairs(c.all.view({size(), -1}), [mine = c.mine.view(-1)](int /*to*/) { return mine; });
}

C10dGroup::Works C10dGroup::of(const AllToAll& c) {
  const at::Tensor received = c.received.view({size(), -1}), sent = c.sent.view({size(), -1});
  return by_pairs(received, [&](int to) { return sent[to]; });
}

C10dGroup::Works C10dGroup::of(const ReduceScatter& c) {
  c10d::ReduceScatterOptions options;
  options.reduceOp = reduce_op(c.how);
  return {reduce_into(*group_, c.mine.view(-1), c.all.view(-1), options)};
}

C10dGroup::Works C10dGroup::of(const Broadcast& c) {
  std::vector<at::Tensor> tensors{c.tensor};
  c10d::BroadcastOptions options;
  options.rootRank = c.root;
  return {group_->broadcast(tensors, options)};
}

C10dGroup::Works C10dGroup::of(const Send& c) { return {send(c.tensor, c.to, c.tag)}; }
C10dGroup::Works C10dGroup::of(const Receive& c) { return {receive(c.tensor, c.from, c.tag)}; }
C10dGroup::Works C10dGroup::of(const Barrier& /*unused*/) { return {group_->barrier()}; }

C10dGroup::Work C10dGroup::send(const at::Tensor& tensor, int to, int tag) {
  std::vector<at::Tensor> tensors{tensor};
  return group_->send(tensors, to, tag);
}

C10dGroup::Work C10dGroup::receive(const at::Tensor& tensor, int from, int tag) {
  std::vector<at::Tensor> tensors{tensor};
  return group_->recv(tensors, from, tag);
}

C10dGroup::Works C10dGroup::by_pairs(const at::Tensor& received, const std::function<at::Tensor(int to)>& sent_to) {
  // Behind those of what is sent and received alone.
  constexpr int kFirst = 1 << 30, kTags = std::numeric_limits<int>::max() - kFirst;
  next_tag_ = next_tag_ % kTags + 1;
  const int tag = kFirst + next_tag_;
  Works works;
  if (received.numel() == 0) return works;
  try {
    for (int distance = 1; distance < size(); ++distance) {
      const int from = (rank() + size() - distance) % size();
      works.push_back(receive(received[from], from, tag));
    }
    for (int distance = 1; distance < size(); ++distance) {
      const int to = (rank() + distance) % size();
      works.push_back(send(sent_to(to), to, tag));
    }
    received[rank()].copy_(sent_to(rank()));  // meanwhile
  } catch (...) {
    let_go_apart(std::move(works));
    throw;
  }
  return works;
}

}  // namespace snug::parallel
