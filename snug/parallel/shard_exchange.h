#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "snug/parallel/world.h"

namespace snug::parallel {

/// What processes have of tensors in shards, and fetch from each other: each asks for what it needs when it needs it,
/// in whatever order, and a thread of each process answers whatever that does in between. So processes may run other
/// operators than others, or the same in another order, as under memory pressure, and none waits for what another one
/// does not come to. Who changes a shard has to know that nobody fetches it meanwhile: see DataParallel::gather().
class ShardExchange {
 public:
  /// All processes make one at once.
  explicit ShardExchange(World& world);
  /// Waits until all have come so far, unless one has failed: until then they may ask for this one's shards.
  ~ShardExchange();
  ShardExchange(const ShardExchange&) = delete;
  ShardExchange& operator=(const ShardExchange&) = delete;

  /// Others may ask for this, of this process, by a number; from then on it must be the same memory. All processes
  /// offer the same numbers before any of them is asked for: meet().
  void offer(std::int64_t number, const at::Tensor& shard);
  /// All have offered.
  void meet();

  /// A shard on its way.
  class Fetch {
   public:
    /// Until it is there. Throws GroupFailed.
    void wait();

   private:
    friend class ShardExchange;
    std::unique_ptr<std::array<std::int64_t, 3>> request_;
    ProcessGroup::Begun asked_, answered_;
  };
  /// What that process has of that number, which is as long as `shard`, dense: its memory must stay until it is there.
  [[nodiscard]] Fetch fetch(int from, std::int64_t number, const at::Tensor& shard);

  [[nodiscard]] int rank() const noexcept { return asks_->rank(); }
  [[nodiscard]] int size() const noexcept { return asks_->size(); }
  /// Of this process's own questions and answers, in bytes that it has received.
  [[nodiscard]] const ProcessGroup& asks() const noexcept { return *asks_; }

 private:
  class Server;
  std::shared_ptr<ProcessGroup> all_, asks_;
  std::shared_ptr<Server> server_;  // its thread holds it too
  std::chrono::milliseconds patience_;
  int next_tag_ = 0;
};

}  // namespace snug::parallel
