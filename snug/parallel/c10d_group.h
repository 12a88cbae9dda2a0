#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/parallel/process_group.h"
#include "snug/parallel/roll_call.h"

namespace snug::parallel {

/// Processes whose collectives go through a group of c10d: by LibTorch's operators, so that what records a step sees
/// what they write. Gathers and exchanges go by messages in pairs.
class C10dGroup : public ProcessGroup {
 public:
  /// `roll`: to be called when it has failed; may be null. `patience`: of each wait; none: the group's own.
  C10dGroup(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<RollCall> roll, int rank,
            const std::vector<int>& members, std::optional<std::chrono::milliseconds> patience = {});
  ~C10dGroup() override;
  C10dGroup(const C10dGroup&) = delete;
  C10dGroup& operator=(const C10dGroup&) = delete;

 protected:
  std::unique_ptr<Pending> start(const Collective& what) override;

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;
  using Works = std::vector<Work>;
  class Waited;

  std::string who_is_missing() noexcept override;
  void disconnect() noexcept override;
  void close() noexcept;

  Works of(const AllReduce& c);
  Works of(const AllGather& c);
  Works of(const AllToAll& c);
  Works of(const ReduceScatter& c);
  Works of(const Broadcast& c);
  Works of(const Send& c);
  Works of(const Receive& c);
  Works of(const Barrier& c);
  Work send(const at::Tensor& tensor, int to, int tag);
  Work receive(const at::Tensor& tensor, int from, int tag);
  /// Each sends to each; the nearest ranks behind first, so that not all begin with the same one.
  Works by_pairs(const at::Tensor& received, const std::function<at::Tensor(int to)>& sent_to);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<RollCall> roll_;
  std::optional<std::chrono::milliseconds> patience_;
  /// Whether somebody else keeps the group's works, which are not waited for then.
  std::shared_ptr<std::atomic<bool>> are_kept_ = std::make_shared<std::atomic<bool>>(false);
  int next_tag_ = 0;
};

}  // namespace snug::parallel
