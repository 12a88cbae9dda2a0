#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/agreement.h"
#include "snug/parallel/launch.h"
#include "snug/parallel/process_group.h"

namespace snug::parallel {

struct MeetOptions {
  /// How long processes wait for each other: to meet, and in each collective. Must be longer than the time that one
  /// process spends between two collectives, except for saving the training state: while it writes, the first process
  /// sends the others a message every second.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// The processes that one launcher has started, which have met, and the groups of them. Collectives go through c10d:
/// Gloo for tensors of the CPU, and for those of accelerators, by copies on the host (through_host.h).
class World {
 public:
  /// Waits for all of them. The interface that GLOO_SOCKET_IFNAME names is used, or the local one where all are on one
  /// machine, or that of the machine's name. SIGPIPE, where nobody handles it, is ignored from then on, as Python does:
  /// a process that is gone would end those that write to it. Throws GroupFailed if not all processes come in time;
  /// UsageError where this process may not open as many sockets as there are processes (see allow_open_files).
  static std::shared_ptr<World> meet(const Launched& launched, const MeetOptions& options = {});

  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] const Launched& launched() const noexcept { return launched_; }
  [[nodiscard]] const std::shared_ptr<ProcessGroup>& all() const noexcept { return all_; }

  /// Of all of them.
  [[nodiscard]] virtual std::shared_ptr<Agreement> agreement();

  /// What this process does from here on, as "step 12", for the messages of others when it is missing.
  virtual void doing(const std::string& /*what*/) {}

  /// Of those with these ranks, among them this process; their place in the list is their rank in the group. All of
  /// them call it, in one order where several lists are the same. Throws UsageError for ranks that there are not, or
  /// twice.
  [[nodiscard]] std::shared_ptr<ProcessGroup> group(const std::vector<int>& ranks);

  /// Ends of one group of all, for a thread each: what the one sends may be received by another of another process.
  /// They do sends and receives alone. (c10d's groups may be used by several threads so, but for a counter that
  /// describes them.)
  struct Channel {
    std::vector<std::shared_ptr<ProcessGroup>> asks;     ///< by the rank of who is asked; wait as long as others do
    std::vector<std::shared_ptr<ProcessGroup>> answers;  ///< by the rank of who asks; wait for ever, if that one lives
    std::chrono::milliseconds patience;                  ///< of who asks
  };
  /// All processes call it at once.
  [[nodiscard]] virtual Channel channel() = 0;

 protected:
  explicit World(Launched launched) : launched_(std::move(launched)) {}
  [[nodiscard]] std::vector<int> everybody() const;
  std::shared_ptr<ProcessGroup> all_;

 private:
  virtual std::shared_ptr<ProcessGroup> make(const std::vector<int>& ranks, int rank) = 0;
  Launched launched_;
};

}  // namespace snug::parallel
