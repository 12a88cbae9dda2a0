#include "snug/parallel/rehearsed_world.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/match.h"
#include "snug/described/described_device.h"
#include "snug/parallel/c10d_group.h"
#include "snug/parallel/group_agreement.h"
#include "snug/parallel/rehearsed_time.h"
#include "snug/record/recording_key.h"

namespace snug::parallel {
namespace {

class UnderWay final : public Pending {
 public:
  /// `waited`: to which the time is added that somebody waits for it; may be null.
  UnderWay(std::shared_ptr<RehearsedTime> time, double over, std::atomic<double>* waited)
      : time_(std::move(time)), over_(over), waited_(waited) {}
  void wait() override {
    const double began = time_->now();
    time_->wait_until(over_);
    if (waited_ != nullptr) *waited_ += time_->now() - began;
  }
  void abandon() noexcept override {}

 private:
  std::shared_ptr<RehearsedTime> time_;
  double over_;
  std::atomic<double>* waited_;
};

/// Where questions would come from.
class Nobody final : public ProcessGroup {
 public:
  using ProcessGroup::ProcessGroup;

 private:
  std::unique_ptr<Pending> start(const Collective& /*what*/) override {
    throw GroupFailed("parallel: nobody asks in a rehearsal");
  }
};

/// Its own word, as all others have it.
class OwnWord final : public Agreement {
 public:
  OwnWord(std::shared_ptr<Agreement> of_group, std::function<bool()> is_unlike_others)
      : of_group_(std::move(of_group)), is_unlike_others_(std::move(is_unlike_others)) {}
  std::vector<Vote> votes(Vote mine) override { return of_group_->votes(mine); }
  bool covers_collectives() const override { return of_group_->covers_collectives(); }
  bool has_collectives() const override { return of_group_->has_collectives(); }
  bool is_unlike_others() const override { return is_unlike_others_(); }

 private:
  std::shared_ptr<Agreement> of_group_;
  std::function<bool()> is_unlike_others_;
};

/// Nothing is on its way.
class Done final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds /*patience*/) override { return true; }
};

// Collectives of a described device, whose tensors have no contents: what they write is what they were given.

void write_nothing(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto begin = stack->end() - static_cast<std::ptrdiff_t>(schema.arguments().size());
  const c10::IValue written = *begin;
  stack->erase(begin, stack->end());
  for (const c10::Argument& result : schema.returns()) {
    const bool is_work = result.type()->kind() == c10::TypeKind::ClassType;
    stack->push_back(is_work ? c10::IValue(c10::intrusive_ptr<c10d::Work>(c10::make_intrusive<Done>())) : written);
  }
}

c10::intrusive_ptr<c10d::Work> send(at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                    std::int64_t to, std::int64_t tag) {
  std::vector<at::Tensor> all = tensors.vec();
  return group->getBackend(described::kDescribed)->send(all, static_cast<int>(to), static_cast<int>(tag));
}

TORCH_LIBRARY_IMPL(c10d, MAIA, library) {
  for (const char* const name : {"allreduce_", "broadcast_", "_reduce_scatter_base_", "recv_"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&write_nothing>());
  library.impl("send", &send);
}

}  // namespace

/// What comes of sends, and how the others are: in memory of its own, beside what a budget counts.
class Rehearsal::Shared {
 public:
  Shared() {
    std::mt19937 engine;  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same each time
    std::normal_distribution<float> around(0, kSpread);
    for (float& one : by_chance_) one = around(engine);
  }

  void sent(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    largest_ = std::max(largest_, static_cast<Bytes>(tensor.nbytes()));
    if (static_cast<Bytes>(tensor.nbytes()) > kSmall || !tensor.is_cpu()) return;
    std::vector<std::byte>& bytes = small_[{tensor.scalar_type(), tensor.numel()}];
    bytes.resize(tensor.nbytes());
    std::memcpy(bytes.data(), tensor.const_data_ptr(), bytes.size());
  }

  void receive(const at::Tensor& tensor) {
    if (!tensor.is_cpu()) return;  // it has no contents
    const std::lock_guard lock(mutex_);
    if (const auto found = small_.find({tensor.scalar_type(), tensor.numel()}); found != small_.end()) {
      std::memcpy(tensor.mutable_data_ptr(), found->second.data(), found->second.size());
      return;
    }
    const at::Tensor flat = tensor.view(-1);
    if (!tensor.is_floating_point()) {
      flat.zero_();
      return;
    }
    const at::Tensor some = at::from_blob(by_chance_.data(), {std::ssize(by_chance_)}, at::kFloat);
    for (std::int64_t at = 0; at < flat.numel(); at += some.numel()) {
      const std::int64_t length = std::min(some.numel(), flat.numel() - at);
      flat.narrow(0, at, length).copy_(some.narrow(0, 0, length));
    }
  }

  Bytes largest() {
    const std::lock_guard lock(mutex_);
    return largest_;
  }

  std::atomic<double> waited = 0;  // for messages
  std::atomic<Others> others = Others::Alike;

 private:
  static constexpr Bytes kSmall = 256;     // of what says something of another message
  static constexpr float kSpread = 0.02F;  // as weights have it: sums of many stay finite
  std::mutex mutex_;
  Bytes largest_ = 0;
  std::map<std::pair<at::ScalarType, std::int64_t>, std::vector<std::byte>> small_;
  std::array<float, 1 << 14> by_chance_{};
};

/// When the ways of one process are free again.
class Rehearsal::Ways {
 public:
  Ways(const Links& links, std::shared_ptr<RehearsedTime> time) : links_(links), time_(std::move(time)) {}

  std::unique_ptr<Pending> begin(const Collective& what, const std::vector<int>& members, int rank,
                                 std::atomic<double>& waited_for_messages) {
    const double seconds = seconds_of(what, members, rank, links_);
    const std::lock_guard lock(mutex_);
    // Both directions at once.
    const bool comes = std::holds_alternative<Receive>(what);
    const std::size_t way = 2 * std::size_t{leaves_machine(what, members, rank, links_)} + std::size_t{comes};
    double& free = free_.at(way);
    free = std::max(free, time_->now()) + seconds;
    return std::make_unique<UnderWay>(time_, free, comes ? &waited_for_messages : nullptr);
  }

 private:
  const Links links_;
  const std::shared_ptr<RehearsedTime> time_;
  std::mutex mutex_;
  std::array<double, 4> free_{};
};

/// What comes of collectives, at once: below LibTorch's operators for them, as those of a real one are.
class Rehearsal::Backend final : public c10d::Backend {
 public:
  Backend(std::shared_ptr<Shared> shared, int rank, int size) : c10d::Backend(rank, size), shared_(std::move(shared)) {}

  /// What the next calls are of, as long as it lives.
  class Doing {
   public:
    Doing(Backend& of, const Collective& what) : of_(of) { of_.what_ = &what; }
    ~Doing() { of_.what_ = nullptr; }
    Doing(const Doing&) = delete;
    Doing& operator=(const Doing&) = delete;

   private:
    Backend& of_;
  };

  const std::string getBackendName() const override { return "rehearsal"; }  // NOLINT(readability-const-return-type)
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::AllreduceOptions& /*options*/) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::BroadcastOptions& /*options*/) override {
    return done();
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override { return done(); }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& mine, at::Tensor& all,
                                                      const c10d::ReduceScatterOptions& /*options*/) override {
    if (!mine.is_cpu()) return done();  // it has no contents
    const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);
    mine.view(-1).copy_(all.view({getSize(), -1})[getRank()]);
    return done();
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int /*to*/, int /*tag*/) override {
    if (std::holds_alternative<Send>(*what_)) shared_->sent(tensors.front());
    return done();
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int /*tag*/) override {
    const at::Tensor& tensor = tensors.front();
    if (!tensor.is_cpu()) return done();
    const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);
    std::visit(Match{
                   [&](const AllGather& c) { tensor.view(-1).copy_(c.mine.view(-1)); },
                   [&](const AllToAll& c) {
                     tensor.view(-1).copy_(c.sent.view({getSize(), -1})[from]);
                   },
                   [&](const auto&) { shared_->receive(tensor); },
               },
               *what_);
    return done();
  }

 private:
  static c10::intrusive_ptr<c10d::Work> done() { return c10::make_intrusive<Done>(); }

  std::shared_ptr<Shared> shared_;
  const Collective* what_ = nullptr;
};

class Rehearsal::Group final : public C10dGroup {
 public:
  Group(std::shared_ptr<Ways> ways, const std::shared_ptr<Shared>& shared, int rank, const std::vector<int>& members)
      : Group(std::move(ways), shared, c10::make_intrusive<Backend>(shared, rank, static_cast<int>(members.size())),
              rank, members) {}

  bool has_others() const noexcept override { return false; }
  // The same in all of them, however often each goes through it.
  std::int64_t number_step() noexcept override { return 1; }

 private:
  Group(std::shared_ptr<Ways> ways, std::shared_ptr<Shared> shared, c10::intrusive_ptr<Backend> backend, int rank,
        const std::vector<int>& members)
      : C10dGroup(of_backend(backend), nullptr, rank, members),
        ways_(std::move(ways)),
        shared_(std::move(shared)),
        backend_(std::move(backend)) {}

  static c10::intrusive_ptr<c10d::ProcessGroup> of_backend(const c10::intrusive_ptr<Backend>& backend) {
    constexpr auto kKind = c10d::ProcessGroup::BackendType::CUSTOM;
    auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), backend->getRank(),
                                                         backend->getSize());
    for (const c10::DeviceType device : {c10::kCPU, described::kDescribed}) group->setBackend(device, kKind, backend);
    group->setDefaultBackend(kKind);
    group->setGroupName("rehearsal");
    return group;
  }

  std::unique_ptr<Pending> start(const Collective& what) override {
    // What it takes to copy contents is a part of what links are measured to take.
    std::unique_ptr<Pending> under_way = ways_->begin(what, members(), rank(), shared_->waited);
    const Backend::Doing doing(*backend_, what);
    (void)C10dGroup::start(what);
    return under_way;
  }

  std::shared_ptr<Ways> ways_;
  std::shared_ptr<Shared> shared_;
  c10::intrusive_ptr<Backend> backend_;
};

class Rehearsal::OfOne final : public World {
 public:
  OfOne(const Rehearsal& of, int rank)
      : World({.rank = rank,
               .size = of.processes_,
               .local_rank = rank % of.links_.per_machine,
               .local_size = std::min(of.links_.per_machine, of.processes_),
               .host = {},
               .launcher = "a rehearsal"}),
        ways_(std::make_shared<Ways>(of.links_, of.time_)),
        shared_(of.shared_) {
    all_ = make(everybody(), rank);
  }

  std::shared_ptr<Agreement> agreement() override {
    return std::make_shared<OwnWord>(agreement_of(all_),
                                     [shared = shared_] { return shared->others == Others::Unlike; });
  }

  Channel channel() override {
    constexpr std::chrono::minutes kPatience{10};
    const int rank = launched().rank;
    Channel channel{.asks = {}, .answers = {}, .patience = kPatience};
    for (int other = 0; other < launched().size; ++other) {
      channel.asks.push_back(make(everybody(), rank));
      channel.answers.push_back(std::make_shared<Nobody>(rank, launched().size));
    }
    return channel;
  }

 private:
  std::shared_ptr<ProcessGroup> make(const std::vector<int>& ranks, int rank) override {
    return std::make_shared<Group>(ways_, shared_, rank, ranks);
  }

  std::shared_ptr<Ways> ways_;
  std::shared_ptr<Shared> shared_;
};

Rehearsal::Rehearsal(int processes, const Links& links, c10::Device device)
    : processes_(processes), links_(links), time_(rehearsed_time(device)), shared_(std::make_shared<Shared>()) {
  for (const Link& link : {links.within, links.between}) {
    if (link.bytes_per_second > 0 && link.seconds_per_message >= 0) continue;
    throw UsageError(fmt::format(
        "parallel: a rehearsal with a link of {:g} bytes a second and {:g} s for each message: the one must "
        "be more than 0, and the other no less",
        link.bytes_per_second, link.seconds_per_message));
  }
  if (processes > 0 && links.per_machine > 0) return;
  throw UsageError(fmt::format("parallel: a rehearsal of {} processes, {} on each machine: there must be one at least",
                               processes, links.per_machine));
}

std::shared_ptr<World> Rehearsal::world_of(int rank) const {
  if (rank < 0 || rank >= processes_) {
    throw UsageError(
        fmt::format("parallel: a rehearsal of {} processes has none of rank {}; ranks count from 0", processes_, rank));
  }
  return std::make_shared<OfOne>(*this, rank);
}

void Rehearsal::set_others(Others others) { shared_->others = others; }

double Rehearsal::seconds_of_messages() const { return shared_->waited; }
Bytes Rehearsal::largest_message() const { return shared_->largest(); }

}  // namespace snug::parallel
