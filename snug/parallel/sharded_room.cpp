#include "snug/parallel/sharded_room.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <future>
#include <utility>

#include "snug/memory/tag.h"

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
  bytes_of_shard_.copy_(part_of(contents, exchange_->rank()));
  return {};
}

std::vector<ShardExchange::Fetch> ShardedRoom::begin(const at::Tensor& contents) const {
  const at::NoGradGuard no_grad;
  std::vector<ShardExchange::Fetch> fetches;
  const int rank = exchange_->rank(), size = exchange_->size();
  for (int distance = 1; distance < size; ++distance) {  // not all begin with the same one
    const int from = (rank + distance) % size;
    if (shards_.count(from) > 0) fetches.push_back(exchange_->fetch(from, number_, part_of(contents, from)));
  }
  part_of(contents, rank).copy_(bytes_of_shard_);
  return fetches;
}

memory::StreamMark ShardedRoom::read(const at::Tensor& contents, std::vector<memory::StreamMark> after) const {
  for (const memory::StreamMark& mark : after) mark.wait();
  auto fetches = std::make_shared<std::vector<ShardExchange::Fetch>>(begin(contents));
  // Whoever waits for it first does.
  return memory::StreamMark(std::async(std::launch::deferred, [fetches = std::move(fetches)] {
                              for (ShardExchange::Fetch& fetch : *fetches) fetch.wait();
                            }).share());
}

void ShardedRoom::read_now(const at::Tensor& contents) const {
  for (ShardExchange::Fetch& fetch : begin(contents)) fetch.wait();
}

}  // namespace snug::parallel
