#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/parallel/c10d_group.h"
#include "snug/parallel/meeting.h"
#include "snug/parallel/open_files.h"
#include "snug/parallel/roll_call.h"
#include "snug/parallel/through_host.h"
#include "snug/parallel/world.h"

namespace snug::parallel {
namespace {

/// Threads that begin meanwhile take no processor from one that runs when they wake up. Those of Gloo look again at
/// once where another thread is about to use the connection that they woke up for: in that one's place they would run
/// in circles until their time is over.
class ModestThreads {
 public:
  ModestThreads() : is_usual_(::sched_getscheduler(0) == SCHED_OTHER) {
    if (is_usual_) set(SCHED_BATCH);
  }
  ~ModestThreads() {
    if (is_usual_) set(SCHED_OTHER);
  }
  ModestThreads(const ModestThreads&) = delete;
  ModestThreads& operator=(const ModestThreads&) = delete;

 private:
  static void set(int policy) {
    const sched_param none{};
    (void)::sched_setscheduler(0, policy, &none);  // else they are as they are
  }
  bool is_usual_;
};

/// Gloo writes to connections whose other end may be gone, and takes that for an error where it lives to see it.
void outlive_broken_connections() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL) return;
  now.sa_handler = SIG_IGN;
  (void)::sigaction(SIGPIPE, &now, nullptr);
}

/// That this build of LibTorch knows and this process has.
std::vector<c10::DeviceType> accelerators() {
  std::vector<c10::DeviceType> types;
  for (int i = 0; i < static_cast<int>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES); ++i) {
    const auto type = static_cast<c10::DeviceType>(i);
    if (type == c10::kCPU || type == c10::kMeta || !c10::impl::hasDeviceGuardImpl(type)) continue;
    types.push_back(type);
  }
  return types;
}

class C10dWorld final : public World {
 public:
  C10dWorld(const Launched& launched, const MeetOptions& options) : World(launched), timeout_(options.timeout) {
    c10d::TCPStoreOptions meeting;
    meeting.port = static_cast<std::uint16_t>(launched.port);
    meeting.isServer = launched.rank == 0 && !launched.host_waits;
    meeting.numWorkers = static_cast<std::size_t>(launched.size);
    meeting.waitWorkers = !launched.host_waits;
    meeting.timeout = timeout_;
    meeting.useLibUV = false;
    allow_open_files(launched.size, fmt::format("{} processes, each connected to each", launched.size));
    const auto store = c10::make_intrusive<c10d::TCPStore>(launched.host, meeting);
    store_ = c10::make_intrusive<c10d::PrefixStore>(meet_at(*store, launched.rank, launched.size, timeout_), store);
    constexpr std::chrono::milliseconds kPatience{3000};
    roll_ = std::make_shared<RollCall>(store_, launched.rank, std::min(kPatience, timeout_ / 4));
    all_ = make(everybody(), launched.rank);
  }

  ~C10dWorld() override { roll_->leave(); }
  C10dWorld(const C10dWorld&) = delete;
  C10dWorld& operator=(const C10dWorld&) = delete;

  void doing(const std::string& what) override { roll_->doing(what); }

 private:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

  std::shared_ptr<ProcessGroup> make(const std::vector<int>& ranks, int rank) override {
    return std::make_shared<C10dGroup>(group_of(ranks, rank, timeout_), roll_, rank, ranks);
  }

  Channel channel() override {
    constexpr auto kForever = std::chrono::hours(24 * 3650);  // of who answers, which nobody may ask for long
    const std::vector<int> ranks = everybody();
    const Group group = group_of(ranks, launched().rank, timeout_);
    const auto end = [&](std::shared_ptr<RollCall> roll, std::chrono::milliseconds patience) {
      return std::make_shared<C10dGroup>(group, std::move(roll), launched().rank, ranks, patience);
    };
    Channel channel{.asks = {}, .answers = {}, .patience = timeout_};
    for (int rank = 0; rank < launched().size; ++rank) {
      channel.asks.push_back(end(roll_, timeout_));
      channel.answers.push_back(end(nullptr, kForever));
    }
    return channel;
  }

  Group group_of(const std::vector<int>& ranks, int rank, std::chrono::milliseconds timeout) {
    std::string name = fmt::format("{}", fmt::join(ranks, ","));
    name += fmt::format("/{}", made_[name]++);
    const int size = static_cast<int>(ranks.size());
    allow_open_files(size, fmt::format("a group of {} processes, each connected to each", size));
    const auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    {
      const ModestThreads threads;
      options->devices.push_back(device());  // and a thread for it
    }
    const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
    const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
    // A process that is done with the group at once would close connections while others still wait for theirs.
    if (size > 1) gloo->barrier()->wait();
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
    const auto of_others = through_host(gloo);
    for (const c10::DeviceType type : accelerators())
      group->setBackend(type, c10d::ProcessGroup::BackendType::CUSTOM, of_others);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    group->setGroupName(name);
    return group;
  }

  std::shared_ptr<::gloo::transport::Device> device() const {
    // PyTorch accepts a comma-separated list and round-robins over it; snug uses the first. Empty means unset.
    const char* const set = std::getenv("GLOO_SOCKET_IFNAME");  // NOLINT(concurrency-mt-unsafe)
    const std::string_view interfaces = set != nullptr ? set : "";
    if (const std::string first(interfaces.substr(0, interfaces.find(','))); !first.empty())
      return c10d::ProcessGroupGloo::createDeviceForInterface(first);
    if (launched().local_size == launched().size) return c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
    return c10d::ProcessGroupGloo::createDefaultDevice();
  }

  std::shared_ptr<RollCall> roll_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<std::string, int> made_;  // groups, by their ranks
};

}  // namespace

std::shared_ptr<World> World::meet(const Launched& launched, const MeetOptions& options) {
  outlive_broken_connections();
  try {
    return std::make_shared<C10dWorld>(launched, options);
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    throw GroupFailed(fmt::format(
        "parallel: rank {} of {} processes has not met the others at {}, port {}, within {} s at most: {}; see whether "
        "all were started, and can reach that machine; MASTER_ADDR and MASTER_PORT say another place",
        launched.rank, launched.size, launched.host, launched.port,
        std::chrono::duration_cast<std::chrono::seconds>(options.timeout).count(), text.substr(0, text.find('\n'))));
  }
}

}  // namespace snug::parallel
