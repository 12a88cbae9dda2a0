#include "snug/parallel/sharded_room.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <exception>
#include <future>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/tag.h"
#include "snug/memory/tier_room.h"

namespace snug::parallel {

ShardedRoom::ShardedRoom(std::shared_ptr<ShardExchange> exchange, const at::Tensor& like, std::int64_t number)
    : exchange_(std::move(exchange)), shards_(like.numel(), exchange_->size()), number_(number) {
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Weights);
  shard_ = at::zeros({shards_.count(exchange_->rank())}, like.options().requires_grad(false));
  bytes_of_shard_ = shard_.view(at::kByte);
  if (like.is_floating_point()) shard_.requires_grad_();
  exchange_->offer(number_, bytes_of_shard_);
}

Bytes ShardedRoom::bytes() const noexcept {
  return static_cast<Bytes>(shards_.elements) * static_cast<Bytes>(shard_.element_size());
}

at::Tensor ShardedRoom::part_of(const at::Tensor& contents, int rank) const {
  const auto element = static_cast<std::int64_t>(shard_.element_size());
  return contents.narrow(0, shards_.first(rank) * element, shards_.count(rank) * element);
}

memory::StreamMark ShardedRoom::write(const at::Tensor& contents) {
  const at::NoGradGuard no_grad;
  if (memory::has_owner(shard_)) {
    std::promise<void> failed;
    failed.set_exception(std::make_exception_ptr(
        Error("parallel: a parameter has been written whose shards are streamed, and only these can be written; write "
              "what it has as its shard in each process")));
    return written_ = memory::StreamMark(failed.get_future().share());
  }
  bytes_of_shard_.copy_(part_of(contents, exchange_->rank()));
  return {};
}

memory::StreamMark ShardedRoom::read_own(const at::Tensor& contents) const {
  const at::Tensor part = part_of(contents, exchange_->rank());
  if (const auto room = memory::room_of(shard_)) return room->read(part);
  part.copy_(bytes_of_shard_);
  return {};
}

/// On their way into contents, whose memory must stay until they are there: to its end it waits for those that nobody
/// has waited for.
class ShardedRoom::Parts {
 public:
  Parts() = default;
  ~Parts() {
    try {
      own.wait();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nobody wants the contents any more
    }
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  void wait() {
    own.wait();
    for (ShardExchange::Fetch& fetch : others) fetch.wait();
  }

  std::vector<ShardExchange::Fetch> others;
  memory::StreamMark own;
};

std::shared_ptr<ShardedRoom::Parts> ShardedRoom::begin(const at::Tensor& contents) const {
  const at::NoGradGuard no_grad;
  auto parts = std::make_shared<Parts>();
  const int rank = exchange_->rank(), size = exchange_->size();
  for (int distance = 1; distance < size; ++distance) {  // not all begin with the same one
    const int from = (rank + distance) % size;
    if (shards_.count(from) > 0) parts->others.push_back(exchange_->fetch(from, number_, part_of(contents, from)));
  }
  parts->own = read_own(contents);
  return parts;
}

memory::StreamMark ShardedRoom::read(const at::Tensor& contents, std::vector<memory::StreamMark> after) const {
  written_.wait();
  for (const memory::StreamMark& mark : after) mark.wait();
  // Whoever waits for it first does.
  return memory::StreamMark(std::async(std::launch::deferred, [parts = begin(contents)] { parts->wait(); }).share());
}

void ShardedRoom::read_now(const at::Tensor& contents) const {
  written_.wait();
  begin(contents)->wait();
}

}  // namespace snug::parallel
