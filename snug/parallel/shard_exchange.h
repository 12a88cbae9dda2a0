#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "snug/parallel/world.h"

namespace snug::parallel {

/// What processes have of tensors in shards, and fetch from each other: each asks for what it needs when it needs it,
/// in whatever order, and threads of each process answer whatever that does in between. So processes may run other
/// operators than others, or the same in another order, as under memory pressure, and none waits for what another one
/// does not come to. Who changes a shard has to know that nobody fetches it meanwhile: see DataParallel::gather().
class ShardExchange {
 public:
  /// Those of a group exchange with each other; by its ranks. All processes make one at once, each for its own group.
  ShardExchange(World& world, std::shared_ptr<ProcessGroup> group);
  explicit ShardExchange(World& world) : ShardExchange(world, world.all()) {}
  /// Waits until all have come so far, or are gone: until then they may ask for this one's shards. Not where it is left
  /// by an exception: threads go on to answer then, as long as this process lives.
  ~ShardExchange();
  ShardExchange(const ShardExchange&) = delete;
  ShardExchange& operator=(const ShardExchange&) = delete;

  /// Others may ask for this, of this process, by a number: bytes, whose memory must stay while they may be asked for,
  /// or which are in a tier (StreamedTensors). All processes offer the same numbers before any of them is asked for:
  /// meet().
  void offer(std::int64_t number, const at::Tensor& shard);
  /// All have offered. What is in a tier by now is read for the others in memory that is taken here, of a few parts for
  /// each of them; else when one of them asks for it.
  void meet();

  /// A shard on its way.
  class Fetch {
   public:
    /// Until it is there. Throws GroupFailed. Its end waits, too.
    void wait();

   private:
    friend class ShardExchange;
    ProcessGroup::Begun asked_;
    std::vector<ProcessGroup::Begun> answered_;  // in parts
  };
  /// What that process has of that number, which is as long as `shard`, bytes: their memory must stay until it is
  /// there. Throws GroupFailed, and what has kept a thread of this process from answering, as a disk that cannot be
  /// read.
  [[nodiscard]] Fetch fetch(int from, std::int64_t number, const at::Tensor& shard);

  [[nodiscard]] int rank() const noexcept { return group_->rank(); }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  /// Of this process's own questions.
  [[nodiscard]] std::int64_t fetches() const noexcept { return fetches_; }

 private:
  class Server;
  /// Its rank among all processes.
  [[nodiscard]] int in_world(int rank) const { return group_->members()[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] ProcessGroup& of(int rank) const { return *asks_[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<ProcessGroup> group_;
  // By rank, of all processes each: one for each of the group, so that one that is gone fails its own alone.
  std::vector<std::shared_ptr<ProcessGroup>> asks_;
  std::shared_ptr<Server> server_;  // its threads hold it too
  std::vector<std::thread> threads_;
  std::chrono::milliseconds patience_{};
  int next_tag_ = 0;
  std::int64_t fetches_ = 0;
};

}  // namespace snug::parallel
