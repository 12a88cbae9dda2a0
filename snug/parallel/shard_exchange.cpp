#include "snug/parallel/shard_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/tag.h"
#include "snug/memory/tier_room.h"

namespace snug::parallel {
namespace {

/// For which number, and the tag of the answer.
using Request = std::array<std::int64_t, 2>;

constexpr std::int64_t kNoMore = -1;  // as a number: who asks will ask for nothing more
constexpr int kTagOfRequests = 1;     // answers have those behind it
constexpr int kTagsOfAnswers = 1 << 30;

// Shards go in parts, as they are read where they are in a tier: one while the one before it is sent.
constexpr Bytes kPart = memory::TierRoom::kPart;
constexpr std::size_t kAtOnce = 2;

int parts_of(const at::Tensor& shard) { return static_cast<int>((shard.numel() + kPart - 1) / kPart); }
at::Tensor part_of(const at::Tensor& shard, int part) {
  return shard.narrow(0, part * kPart, std::min(kPart, shard.numel() - part * kPart));
}

/// In memory of its own, beside what a budget counts, which stays as long as somebody sends it.
at::Tensor as_tensor(const Request& request) {
  auto* const own = new Request(request);  // NOLINT(cppcoreguidelines-owning-memory): the tensor's
  return at::from_blob(
      own->data(), {static_cast<std::int64_t>(own->size())}, [own](void*) { delete own; },  // NOLINT
      at::TensorOptions(at::kLong));
}

}  // namespace

/// What this process offers, and its threads that answer, one for each that may ask: so that one which is gone ends its
/// own alone.
class ShardExchange::Server {
 public:
  explicit Server(int peers) : passages_(static_cast<std::size_t>(peers)) {}
  void offer(std::int64_t number, const at::Tensor& shard) {
    const std::lock_guard lock(mutex_);
    offered_.insert_or_assign(number, shard);
  }
  /// As much memory as there has to be for what is not in memory.
  void make_passages() {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, shard] : offered_) {
      if (!memory::room_of(shard)) continue;
      for (at::Tensor& passage : passages_) widen(passage, shard);
    }
  }
  /// `peer`: a number for it.
  static std::thread answer(const std::shared_ptr<Server>& server, std::shared_ptr<ProcessGroup> group, int who,
                            int peer) {
    {
      const std::lock_guard lock(server->mutex_);
      ++server->answering_;
    }
    return std::thread([server, group = std::move(group), who, peer] {
      try {
        server->answer_all(*group, who, peer);
      } catch (const GroupFailed&) {  // NOLINT(bugprone-empty-catch): that process is gone, or hangs
      } catch (const std::exception&) {
        server->fail(std::current_exception());  // and that process finds the connection closed
      }
      const std::lock_guard lock(server->mutex_);
      if (--server->answering_ == 0) server->offered_.clear();
      server->over_.notify_all();
    });
  }
  /// Throws what has kept one of them from answering.
  void check() {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  /// Whether nobody asks for anything any more.
  bool ends_within(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return over_.wait_for(lock, patience, [&] { return answering_ == 0; });
  }

 private:
  void fail(std::exception_ptr why) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(why);
  }
  void answer_all(ProcessGroup& group, int who, int peer) {
    const at::NoGradGuard no_grad;
    for (;;) {
      Request request{};
      group.run(Receive{at::from_blob(request.data(), {static_cast<std::int64_t>(request.size())}, at::kLong), who,
                        kTagOfRequests});
      const auto& [number, tag] = request;
      if (number == kNoMore) return;
      send(group, offered(number), who, static_cast<int>(tag), peer);
    }
  }
  void send(ProcessGroup& group, const at::Tensor& shard, int who, int tag, int peer) {
    const std::shared_ptr<const memory::TierRoom> room = memory::room_of(shard);
    const at::Tensor passage = room ? passage_for(shard, peer) : at::Tensor();
    std::deque<ProcessGroup::Begun> under_way;
    for (int part = 0; part < parts_of(shard); ++part) {
      at::Tensor sent = part_of(shard, part);
      if (room) {
        if (under_way.size() == kAtOnce) {
          under_way.front().wait();
          under_way.pop_front();
        }
        const std::int64_t half = passage.numel() / static_cast<std::int64_t>(kAtOnce);
        const at::Tensor read = passage.narrow(0, part % static_cast<int>(kAtOnce) * half, sent.numel());
        room->read_part(part * kPart, read);
        sent = read;
      }
      under_way.push_back(group.begin(Send{sent, who, tag + part}));
    }
    for (ProcessGroup::Begun& one : under_way) one.wait();
  }
  static void widen(at::Tensor& passage, const at::Tensor& shard) {
    const std::int64_t bytes = std::min(kPart, shard.numel()) * static_cast<std::int64_t>(kAtOnce);
    const memory::TagScope tag(memory::Tag::Staging);
    if (!passage.defined() || passage.numel() < bytes) passage = at::empty({bytes}, at::kByte);
  }
  at::Tensor passage_for(const at::Tensor& shard, int peer) {
    const std::lock_guard lock(mutex_);
    at::Tensor& passage = passages_[static_cast<std::size_t>(peer)];
    widen(passage, shard);
    return passage;
  }
  at::Tensor offered(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    return offered_.at(number);
  }

  std::mutex mutex_;  // of what follows
  std::map<std::int64_t, at::Tensor> offered_;
  std::vector<at::Tensor> passages_;  // by peer, of those that read from a tier
  std::exception_ptr failure_;
  int answering_ = 0;
  std::condition_variable over_;
};

ShardExchange::ShardExchange(World& world, std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), server_(std::make_shared<Server>(group_->size() - 1)) {
  World::Channel channel = world.channel();
  for (const int member : group_->members()) asks_.push_back(channel.asks[static_cast<std::size_t>(member)]);
  patience_ = channel.patience;
  try {
    for (int i = 0; i < size(); ++i) {
      if (i == rank()) continue;
      const int who = in_world(i), peer = static_cast<int>(threads_.size());
      threads_.push_back(Server::answer(server_, std::move(channel.answers[static_cast<std::size_t>(who)]), who, peer));
    }
  } catch (...) {  // no more threads
    for (std::thread& thread : threads_) thread.detach();
    throw;
  }
}

ShardExchange::~ShardExchange() {
  std::vector<ProcessGroup::Begun> told;
  const auto unless_gone = [](const auto& does) {
    try {
      does();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): that one is gone
    }
  };
  for (int to = 0; to < size(); ++to) {
    if (to == rank()) continue;
    unless_gone([&] { told.push_back(of(to).begin(Send{as_tensor({kNoMore, 0}), in_world(to), kTagOfRequests})); });
  }
  for (ProcessGroup::Begun& one : told) unless_gone([&] { one.wait(); });
  // Who has failed does not wait for the others. A thread that still answers keeps what it needs.
  const bool is_over = std::uncaught_exceptions() == 0 && server_->ends_within(patience_);
  for (std::thread& thread : threads_) is_over ? thread.join() : thread.detach();
}

void ShardExchange::offer(std::int64_t number, const at::Tensor& shard) { server_->offer(number, shard); }

void ShardExchange::meet() {
  server_->make_passages();
  group_->run(Barrier{});
}

ShardExchange::Fetch ShardExchange::fetch(int from, std::int64_t number, const at::Tensor& shard) {
  server_->check();
  const int parts = parts_of(shard);
  if (next_tag_ + parts > kTagsOfAnswers) next_tag_ = 0;
  const int tag = kTagOfRequests + next_tag_ + 1;
  next_tag_ += parts;
  ++fetches_;
  Fetch fetch;
  const int who = in_world(from);
  for (int part = 0; part < parts; ++part)
    fetch.answered_.push_back(of(from).begin(Receive{part_of(shard, part), who, tag + part}));
  fetch.asked_ = of(from).begin(Send{as_tensor({number, tag}), who, kTagOfRequests});
  return fetch;
}

void ShardExchange::Fetch::wait() {
  asked_.wait();
  for (ProcessGroup::Begun& one : answered_) one.wait();
}

}  // namespace snug::parallel
