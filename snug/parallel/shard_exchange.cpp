#include "snug/parallel/shard_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "snug/base/errors.h"

namespace snug::parallel {
namespace {

/// Who asks, for which number, and the tag of the answer.
using Request = std::array<std::int64_t, 3>;

constexpr std::int64_t kNoMore = -1;  // as a number: who asks will ask for nothing more
constexpr int kTagOfRequests = 1;     // answers have those behind it
constexpr int kTagsOfAnswers = 1 << 30;

at::Tensor as_tensor(Request& request) {
  return at::from_blob(request.data(), {static_cast<std::int64_t>(request.size())}, at::kLong);
}

}  // namespace

class ShardExchange::Server {
 public:
  explicit Server(std::shared_ptr<ProcessGroup> answers) : answers_(std::move(answers)) {}

  static std::thread start(const std::shared_ptr<Server>& server) {
    return std::thread([server] { server->run(); });
  }
  void offer(std::int64_t number, const at::Tensor& shard) {
    const std::lock_guard lock(mutex_);
    offered_.insert_or_assign(number, shard);
  }
  /// Whether all of them have said that they ask for nothing more, and it has ended.
  bool ends_within(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return over_.wait_for(lock, patience, [&] { return has_ended_; }) && !has_failed_;
  }

 private:
  void run() {
    bool failed = false;
    try {
      const at::NoGradGuard no_grad;
      int may_ask = answers_->size() - 1;
      while (may_ask > 0) {
        Request request{};
        answers_->run(Receive{as_tensor(request), kAnyRank, kTagOfRequests});
        const auto& [who, number, tag] = request;
        if (number == kNoMore) {
          --may_ask;
        } else {
          answers_->run(Send{offered(number), static_cast<int>(who), static_cast<int>(tag)});
        }
      }
    } catch (const std::exception&) {  // who asks is told: nobody answers
      failed = true;
    }
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    has_failed_ = failed;
    over_.notify_all();
  }

  at::Tensor offered(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    return offered_.at(number);
  }

  std::shared_ptr<ProcessGroup> answers_;
  std::mutex mutex_;  // of what follows
  std::map<std::int64_t, at::Tensor> offered_;
  bool has_ended_ = false, has_failed_ = false;
  std::condition_variable over_;
};

ShardExchange::ShardExchange(World& world) : all_(world.all()), patience_(0) {
  World::Channel channel = world.channel();
  asks_ = std::move(channel.asks);
  patience_ = channel.patience;
  server_ = std::make_shared<Server>(std::move(channel.answers));
  Server::start(server_).detach();
}

ShardExchange::~ShardExchange() {
  // Somebody who has failed ends, and others find that out. A thread that still answers keeps what it needs.
  if (std::uncaught_exceptions() > 0) return;
  try {
    std::vector<Request> requests(static_cast<std::size_t>(size()), Request{rank(), kNoMore, 0});
    std::vector<ProcessGroup::Begun> told;
    for (int to = 0; to < size(); ++to) {
      if (to == rank()) continue;
      told.push_back(asks_->begin(Send{as_tensor(requests[static_cast<std::size_t>(to)]), to, kTagOfRequests}));
    }
    for (ProcessGroup::Begun& one : told) one.wait();
    (void)server_->ends_within(patience_);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): one has failed
  }
}

void ShardExchange::offer(std::int64_t number, const at::Tensor& shard) { server_->offer(number, shard); }

void ShardExchange::meet() { all_->run(Barrier{}); }

ShardExchange::Fetch ShardExchange::fetch(int from, std::int64_t number, const at::Tensor& shard) {
  next_tag_ = next_tag_ % kTagsOfAnswers + 1;
  const int tag = kTagOfRequests + next_tag_;
  Fetch fetch;
  fetch.request_ = std::make_unique<Request>(Request{rank(), number, tag});
  fetch.answered_ = asks_->begin(Receive{shard, from, tag});
  fetch.asked_ = asks_->begin(Send{as_tensor(*fetch.request_), from, kTagOfRequests});
  return fetch;
}

void ShardExchange::Fetch::wait() {
  asked_.wait();
  answered_.wait();
}

}  // namespace snug::parallel
