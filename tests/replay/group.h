#pragma once

#include <barrier>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "snug/replay/agreement.h"

namespace snug::testing {

/// Two threads that stand for two processes of a group. One runs at a time: until it votes, or is done.
class GroupOfTwo {
 public:
  void run(const std::function<void(const std::shared_ptr<Agreement>&)>& first,
           const std::function<void(const std::shared_ptr<Agreement>&)>& second) {
    std::thread other([&] { member(1, second); });
    member(0, first);
    other.join();
  }

 private:
  class Member final : public Agreement {
   public:
    Member(GroupOfTwo& group, std::size_t rank) : group_(group), rank_(rank) {}
    std::vector<Vote> votes(Vote mine) override {
      group_.votes_[rank_] = mine;
      group_.turn_.unlock();
      group_.voted_.arrive_and_wait();
      const std::vector<Vote> votes = group_.votes_;
      group_.voted_.arrive_and_wait();
      group_.turn_.lock();
      return votes;
    }

   private:
    GroupOfTwo& group_;
    std::size_t rank_;
  };

  void member(std::size_t rank, const std::function<void(const std::shared_ptr<Agreement>&)>& body) {
    {
      const std::lock_guard lock(turn_);
      body(std::make_shared<Member>(*this, rank));
    }
    voted_.arrive_and_drop();  // who has more to ask than the other is not left waiting
  }

  std::mutex turn_;
  std::barrier<> voted_{2};
  std::vector<Vote> votes_{Vote::Yes, Vote::Yes};
};

}  // namespace snug::testing
