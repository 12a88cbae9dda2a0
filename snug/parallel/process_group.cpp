#include "snug/parallel/process_group.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

#include "snug/base/match.h"
#include "snug/memory/out_of_budget.h"

namespace snug::parallel {
namespace {

class Over final : public Pending {
 public:
  void wait() override {}
  void abandon() noexcept override {}
};

class One final : public ProcessGroup {
 public:
  explicit One(int rank) : ProcessGroup(0, 1, {rank}) {}

 private:
  std::unique_ptr<Pending> start(const Collective& what) override {
    const at::NoGradGuard no_grad;
    std::visit(Match{
                   [](const AllGather& c) { c.all.view(-1).copy_(c.mine.view(-1)); },
                   [](const ReduceScatter& c) { c.mine.view(-1).copy_(c.all.view(-1)); },
                   [](const AllToAll& c) { c.received.view(-1).copy_(c.sent.view(-1)); },
                   [](const Send&) { throw UsageError("parallel: one process alone has nobody to send to"); },
                   [](const Receive&) { throw UsageError("parallel: one process alone has nobody to receive from"); },
                   [](const auto&) {},
               },
               what);
    return std::make_unique<Over>();
  }
};

/// Without where in its sources a library says it, and what it advises.
std::string in_short(std::string_view text) {
  text = text.substr(0, text.find('\n'));
  if (const std::size_t end = text.find("] "); text.starts_with("[/") && end != std::string_view::npos)
    text.remove_prefix(end + 2);
  return std::string(text.substr(0, text.find(". This is typically caused by")));
}

}  // namespace

ProcessGroup::ProcessGroup(int rank, int size, std::vector<int> members)
    : rank_(rank), size_(size), members_(std::move(members)) {}

void ProcessGroup::failed(const Collective& what) {
  std::string why = "an unknown exception";
  try {
    throw;
  } catch (const std::exception& error) {
    why = in_short(error.what());
  } catch (...) {  // NOLINT(bugprone-empty-catch): why says so
  }
  const std::string missing = who_is_missing();
  failure_ = fmt::format(
      "parallel: {} of {} among {} processes, of which this is rank {}, has failed: {} ended, hangs or cannot be "
      "reached ({}); end all of them, and resume",
      name_of(what), format_bytes(bytes_of(what)), size_, rank_, missing.empty() ? "a process has" : missing, why);
  throw GroupFailed(failure_);
}

ProcessGroup::Begun ProcessGroup::begin(const Collective& what) {
  if (!failure_.empty()) throw GroupFailed(failure_);
  check(what, size_);
  try {
    if (watcher_) watcher_(what);
    Begun begun(*this, what, start(what));
    Count& count = counts_.at(what.index());
    ++count.calls;
    count.bytes += bytes_of(what);
    return begun;
  } catch (const UsageError&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {  // nobody is missing but this process, which says why
    end();
    throw;
  } catch (...) {
    if (!memory::refusal_in(std::current_exception())) failed(what);
    end();
    throw;
  }
}

ProcessGroup::Begun::Begun(ProcessGroup& group, Collective what, std::unique_ptr<Pending> pending)
    : group_(&group), what_(std::move(what)), pending_(std::move(pending)) {}

ProcessGroup::Begun::Begun(Begun&& other) noexcept
    : group_(other.group_), what_(std::exchange(other.what_, Barrier{})), pending_(std::move(other.pending_)) {}

ProcessGroup::Begun& ProcessGroup::Begun::operator=(Begun&& other) noexcept {
  if (this == &other) return *this;
  end();
  group_ = other.group_;
  what_ = std::exchange(other.what_, Barrier{});
  pending_ = std::move(other.pending_);
  return *this;
}

ProcessGroup::Begun::~Begun() { end(); }

void ProcessGroup::Begun::end() noexcept {
  try {
    wait();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the group remembers
  }
}

void ProcessGroup::Begun::wait() {
  if (!pending_) return;
  const std::unique_ptr<Pending> pending = std::move(pending_);
  if (group_->has_failed()) {
    pending->abandon();
    throw GroupFailed(group_->failure_);
  }
  try {
    pending->wait();
  } catch (...) {
    pending->abandon();
    group_->failed(what_);
  }
  what_ = Barrier{};  // its tensors are let go of
}

void ProcessGroup::end() noexcept {
  if (has_failed()) return;
  failure_ =
      fmt::format("parallel: this process has ended the group of {} processes of which it is rank {}", size_, rank_);
  disconnect();
}

std::shared_ptr<ProcessGroup> group_of_one(int rank) { return std::make_shared<One>(rank); }

}  // namespace snug::parallel
