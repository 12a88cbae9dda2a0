#include "snug/parallel/shard_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "snug/base/errors.h"

namespace snug::parallel {
namespace {

/// For which number, and the tag of the answer.
using Request = std::array<std::int64_t, 2>;

constexpr std::int64_t kNoMore = -1;  // as a number: who asks will ask for nothing more
constexpr int kTagOfRequests = 1;     // answers have those behind it
constexpr int kTagsOfAnswers = 1 << 30;

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
  void offer(std::int64_t number, const at::Tensor& shard) {
    const std::lock_guard lock(mutex_);
    offered_.insert_or_assign(number, shard);
  }
  static std::thread answer(const std::shared_ptr<Server>& server, std::shared_ptr<ProcessGroup> group, int who) {
    {
      const std::lock_guard lock(server->mutex_);
      ++server->answering_;
    }
    return std::thread([server, group = std::move(group), who] {
      try {
        server->answer_all(*group, who);
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): that process is gone, or hangs
      }
      const std::lock_guard lock(server->mutex_);
      if (--server->answering_ == 0) server->offered_.clear();
      server->over_.notify_all();
    });
  }
  /// Whether nobody asks for anything any more.
  bool ends_within(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return over_.wait_for(lock, patience, [&] { return answering_ == 0; });
  }

 private:
  void answer_all(ProcessGroup& group, int who) {
    const at::NoGradGuard no_grad;
    for (;;) {
      Request request{};
      group.run(Receive{at::from_blob(request.data(), {static_cast<std::int64_t>(request.size())}, at::kLong), who,
                        kTagOfRequests});
      const auto& [number, tag] = request;
      if (number == kNoMore) return;
      group.run(Send{offered(number), who, static_cast<int>(tag)});
    }
  }
  at::Tensor offered(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    return offered_.at(number);
  }

  std::mutex mutex_;  // of what follows
  std::map<std::int64_t, at::Tensor> offered_;
  int answering_ = 0;
  std::condition_variable over_;
};

ShardExchange::ShardExchange(World& world, std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), server_(std::make_shared<Server>()) {
  World::Channel channel = world.channel();
  for (const int member : group_->members()) asks_.push_back(channel.asks[static_cast<std::size_t>(member)]);
  patience_ = channel.patience;
  try {
    for (int i = 0; i < size(); ++i) {
      const int who = in_world(i);
      if (i != rank())
        threads_.push_back(Server::answer(server_, std::move(channel.answers[static_cast<std::size_t>(who)]), who));
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

void ShardExchange::meet() { group_->run(Barrier{}); }

ShardExchange::Fetch ShardExchange::fetch(int from, std::int64_t number, const at::Tensor& shard) {
  next_tag_ = next_tag_ % kTagsOfAnswers + 1;
  const int tag = kTagOfRequests + next_tag_;
  ++fetches_;
  Fetch fetch;
  const int who = in_world(from);
  fetch.answered_ = of(from).begin(Receive{shard, who, tag});
  fetch.asked_ = of(from).begin(Send{as_tensor({number, tag}), who, kTagOfRequests});
  return fetch;
}

void ShardExchange::Fetch::wait() {
  asked_.wait();
  answered_.wait();
}

}  // namespace snug::parallel
