#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "snug/base/errors.h"
#include "snug/parallel/collective.h"

namespace snug::parallel {

/// A collective did not come to its end: a process of the group has ended, hangs, or could not be reached in time. The
/// group is of no more use; what its tensors hold is unknown.
class GroupFailed : public Error {
 public:
  using Error::Error;
};

/// A collective on its way.
class Pending {
 public:
  Pending() = default;
  virtual ~Pending() = default;
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  /// Until its results may be read: by the caller, and on an accelerator by what comes in the current stream from here
  /// on. Throws what has ended it.
  virtual void wait() = 0;
  /// It is waited for no more, as the group has failed: other processes may never do their part. What it holds may have
  /// to stay until this process ends. Must not block.
  virtual void abandon() noexcept = 0;
};

/// Processes that do collectives together: all that snug does go through here. One thread at a time.
class ProcessGroup {
 public:
  /// `rank` among `size`. `members`: their ranks in the world.
  ProcessGroup(int rank, int size, std::vector<int> members = {});
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const std::vector<int>& members() const noexcept { return members_; }

  /// One that has begun. Waits when it goes out of scope, unless the group has failed, and forgets what that throws.
  class Begun {
   public:
    Begun() = default;
    ~Begun();
    Begun(Begun&&) noexcept;
    Begun& operator=(Begun&&) noexcept;
    /// As Pending::wait(), once; nothing to wait for where there is none. Throws GroupFailed.
    void wait();

   private:
    friend class ProcessGroup;
    Begun(ProcessGroup& group, Collective what, std::unique_ptr<Pending> pending);
    void end() noexcept;
    ProcessGroup* group_ = nullptr;
    Collective what_ = Barrier{};
    std::unique_ptr<Pending> pending_;
  };

  /// Begins it; the tensors are held until it is over. The group must outlive what is returned. Throws GroupFailed,
  /// also where an earlier one has failed, UsageError as check(), and, when it has ended the group, what says that this
  /// process has no memory left.
  [[nodiscard]] Begun begin(const Collective& what);
  /// And waits for it.
  void run(const Collective& what) { begin(what).wait(); }

  struct Count {
    std::int64_t calls = 0;
    Bytes bytes = 0;  ///< as bytes_of()
  };
  /// By the index of Collective, of this process, since it was made.
  [[nodiscard]] const std::array<Count, std::variant_size_v<Collective>>& counts() const noexcept { return counts_; }
  template <class Kind>
  [[nodiscard]] const Count& count_of() const {
    return counts_.at(Collective(Kind{}).index());
  }

  /// This process does its part in the group's collectives no more: who waits for it in one fails at once. Must not
  /// block.
  void end() noexcept;

  /// Whether there are others who may wait for this process: there are none in a rehearsal.
  [[nodiscard]] virtual bool has_others() const noexcept { return size_ > 1; }

  /// A number for what its processes do next together, that is the same in all of them.
  virtual std::int64_t number_step() noexcept { return ++steps_; }

  /// Called in front of each collective; what it throws ends that one as if it had failed. May be empty.
  void watch(std::function<void(const Collective&)> watcher) { watcher_ = std::move(watcher); }

 protected:
  /// Whoever is left of the group may be waited for in vain.
  [[nodiscard]] bool has_failed() const noexcept { return !failure_.empty(); }

 private:
  virtual std::unique_ptr<Pending> start(const Collective& what) = 0;
  virtual void disconnect() noexcept {}
  /// Ranks in the world of members that do not answer, as far as that can be known within seconds, and what they said
  /// last that they are doing: words for a message. Empty: not known.
  virtual std::string who_is_missing() noexcept { return {}; }
  [[noreturn]] void failed(const Collective& what);

  int rank_, size_;
  std::vector<int> members_;
  std::string failure_;  // of the first that failed; empty: none has
  std::int64_t steps_ = 0;
  std::array<Count, std::variant_size_v<Collective>> counts_{};
  std::function<void(const Collective&)> watcher_;
};

/// This process alone, by its rank in the world.
std::shared_ptr<ProcessGroup> group_of_one(int rank = 0);

}  // namespace snug::parallel
