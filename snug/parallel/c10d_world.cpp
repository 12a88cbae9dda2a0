#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "snug/base/match.h"
#include "snug/parallel/roll_call.h"
#include "snug/parallel/world.h"

namespace snug::parallel {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

class C10dWorks final : public Pending {
 public:
  explicit C10dWorks(std::vector<Work> works, std::optional<std::chrono::milliseconds> patience = {})
      : works_(std::move(works)), patience_(patience) {}
  void wait() override {
    for (Work& work : works_) {
      if (!work) continue;
      patience_ ? work->wait(*patience_) : work->wait();
      // Gloo's thread lets go of it, and so of its tensors, a little later: what a step takes would depend on when.
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
      while (work.use_count() > 1 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      work.reset();
    }
  }

  // Gloo's buffers block until the other process has done its part.
  void abandon() noexcept override {
    for (Work& work : works_) (void)work.release();
  }

 private:
  std::vector<Work> works_;
  std::optional<std::chrono::milliseconds> patience_;
};

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
Work reduce_into(Group& group, at::Tensor mine, at::Tensor all, const c10d::ReduceScatterOptions& options) {
  if constexpr (requires { group.reduce_scatter_single(mine, all, options); }) {
    return group.reduce_scatter_single(mine, all, options);
  } else {
    return group._reduce_scatter_base(mine, all, options);
  }
}

/// By LibTorch's operators, so that what records a step sees what they write.
class C10dGroup final : public ProcessGroup {
 public:
  /// `roll`: to be called when it has failed; may be null. `patience`: of each wait; none: the group's own.
  C10dGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<RollCall> roll, int rank,
            const std::vector<int>& members, std::optional<std::chrono::milliseconds> patience = {})
      : ProcessGroup(rank, static_cast<int>(members.size()), members),
        group_(std::move(group)),
        roll_(std::move(roll)),
        patience_(patience) {}
  ~C10dGroup() override {
    if (has_failed() && group_) (void)group_.release();  // it would wait for its threads, and those for others
  }
  C10dGroup(const C10dGroup&) = delete;
  C10dGroup& operator=(const C10dGroup&) = delete;

 private:
  std::unique_ptr<Pending> start(const Collective& what) override {
    const at::NoGradGuard no_grad;
    return std::make_unique<C10dWorks>(std::visit(Match{[&](const auto& c) { return of(c); }}, what), patience_);
  }

  std::string who_is_missing() noexcept override { return roll_ ? roll_->missing(members()) : std::string(); }
  /// Its connections are closed with it. Apart, as it waits for what is under way.
  void disconnect() noexcept override {
    if (roll_) roll_->leave();
    try {
      std::thread([group = std::move(group_)]() mutable { group.reset(); }).detach();
    } catch (...) {  // NOLINT(bugprone-empty-catch): others find out by their timeout
    }
  }

  using Works = std::vector<Work>;
  Works of(const AllReduce& c) {
    std::vector<at::Tensor> tensors{c.tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = reduce_op(c.how);
    return {group_->allreduce(tensors, options)};
  }
  // Gloo's own all-gather takes as much memory again as what is gathered; by pairs none is taken.
  Works of(const AllGather& c) {
    return by_pairs(c.all.view({size(), -1}),
                    [mine = c.mine.view(-1)](int /*to*/) -> const at::Tensor& { return mine; });
  }
  Works of(const AllToAll& c) {
    const at::Tensor received = c.received.view({size(), -1}), sent = c.sent.view({size(), -1});
    return by_pairs(received, [&](int to) { return sent[to]; });
  }
  Works of(const ReduceScatter& c) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = reduce_op(c.how);
    return {reduce_into(*group_, c.mine.view(-1), c.all.view(-1), options)};
  }
  Works of(const Broadcast& c) {
    std::vector<at::Tensor> tensors{c.tensor};
    c10d::BroadcastOptions options;
    options.rootRank = c.root;
    return {group_->broadcast(tensors, options)};
  }
  Works of(const Send& c) { return {send(c.tensor, c.to, c.tag)}; }
  Works of(const Receive& c) { return {receive(c.tensor, c.from, c.tag)}; }
  Works of(const Barrier& /*unused*/) { return {group_->barrier()}; }

  Work send(const at::Tensor& tensor, int to, int tag) {
    std::vector<at::Tensor> tensors{tensor};
    return group_->send(tensors, to, tag);
  }
  Work receive(const at::Tensor& tensor, int from, int tag) {
    std::vector<at::Tensor> tensors{tensor};
    return group_->recv(tensors, from, tag);
  }
  /// Each sends to each; the nearest ranks behind first, so that not all begin with the same one.
  template <class SentTo>
  Works by_pairs(const at::Tensor& received, const SentTo& sent_to) {
    constexpr int kTags = 1 << 30;
    next_tag_ = next_tag_ % kTags + 1;  // 0 is what is sent and received alone
    Works works;
    received[rank()].copy_(sent_to(rank()));
    if (received.numel() == 0) return works;
    try {
      for (int distance = 1; distance < size(); ++distance) {
        const int from = (rank() + size() - distance) % size();
        works.push_back(receive(received[from], from, next_tag_));
      }
      for (int distance = 1; distance < size(); ++distance) {
        const int to = (rank() + distance) % size();
        works.push_back(send(sent_to(to), to, next_tag_));
      }
    } catch (...) {
      C10dWorks(std::move(works)).abandon();
      throw;
    }
    return works;
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<RollCall> roll_;
  std::optional<std::chrono::milliseconds> patience_;
  int next_tag_ = 0;
};

class C10dWorld final : public World {
 public:
  C10dWorld(const Launched& launched, const MeetOptions& options) : World(launched), timeout_(options.timeout) {
    c10d::TCPStoreOptions meeting;
    meeting.port = static_cast<std::uint16_t>(launched.port);
    meeting.isServer = launched.rank == 0 && !launched.host_waits;
    meeting.numWorkers = static_cast<std::size_t>(launched.size);
    meeting.waitWorkers = !launched.host_waits;
    meeting.timeout = timeout_;
    meeting.useLibUV = false;
    const auto store = c10::make_intrusive<c10d::TCPStore>(launched.host, meeting);
    // What an attempt before has left there, or these processes when they met before, is not this meeting's.
    const std::string attempt = fmt::format("snug/{}", launched.host_waits ? 0 : launched.attempt);
    const std::int64_t met = store->add(fmt::format("{}/met/{}", attempt, launched.rank), 1);
    store_ = c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}", attempt, met), store);
    std::vector<int> ranks(static_cast<std::size_t>(launched.size));
    for (int rank = 0; rank < launched.size; ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
    constexpr std::chrono::milliseconds kPatience{3000};
    roll_ = std::make_shared<RollCall>(store_, launched.rank, std::min(kPatience, timeout_ / 4));
    all_ = make(ranks, launched.rank);
  }

  ~C10dWorld() override { roll_->leave(); }
  C10dWorld(const C10dWorld&) = delete;
  C10dWorld& operator=(const C10dWorld&) = delete;

  void doing(const std::string& what) override { roll_->doing(what); }

 private:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  std::shared_ptr<ProcessGroup> make(const std::vector<int>& ranks, int rank) override {
    return std::make_shared<C10dGroup>(group_of(ranks, rank, timeout_), roll_, rank, ranks);
  }

  Channel channel() override {
    constexpr auto kForever = std::chrono::hours(24 * 3650);  // of who answers, which nobody may ask for long
    std::vector<int> ranks(static_cast<std::size_t>(launched().size));
    std::iota(ranks.begin(), ranks.end(), 0);
    const Group group = group_of(ranks, launched().rank, timeout_);
    const auto end = [&](std::shared_ptr<RollCall> roll, std::chrono::milliseconds patience) {
      return std::make_shared<C10dGroup>(group, std::move(roll), launched().rank, ranks, patience);
    };
    Channel channel{.asks = {}, .answers = {}, .patience = timeout_};
    for (int rank = 0; rank < launched().size; ++rank) {
      channel.asks.push_back(end(roll_, timeout_));
      channel.answers.push_back(end(nullptr, kForever));
    }
    return channel;
  }

  Group group_of(const std::vector<int>& ranks, int rank, std::chrono::milliseconds timeout) {
    std::string name = fmt::format("{}", fmt::join(ranks, ","));
    name += fmt::format("/{}", made_[name]++);
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices.push_back(device());
    const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
    const int size = static_cast<int>(ranks.size());
    const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    group->setGroupName(name);
    return group;
  }

  std::shared_ptr<::gloo::transport::Device> device() const {
    if (const char* const interface = std::getenv("GLOO_SOCKET_IFNAME"))  // NOLINT(concurrency-mt-unsafe)
      return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
    if (launched().local_size == launched().size) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
    return c10d::ProcessGroupGloo::createDefaultDevice();
  }

  std::shared_ptr<RollCall> roll_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<std::string, int> made_;  // groups, by their ranks
};

}  // namespace

std::shared_ptr<World> World::meet(const Launched& launched, const MeetOptions& options) {
  try {
    return std::make_shared<C10dWorld>(launched, options);
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    throw GroupFailed(fmt::format(
        "parallel: rank {} of {} processes has not met the others at {}, port {}, within {} s at most: {}; see whether "
        "all were started, and can reach that machine; MASTER_ADDR and MASTER_PORT say another place",
        launched.rank, launched.size, launched.host, launched.port,
        std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count(), text.substr(0, text.find('\n'))));
  }
}

}  // namespace snug::parallel
