#include "snug/parallel/collective.h"

#include <fmt/format.h>

#include <array>

#include "snug/base/errors.h"
#include "snug/base/match.h"

namespace snug::parallel {
namespace {

constexpr std::array<std::string_view, std::variant_size_v<Collective>> kNames = {
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send", "receive", "barrier"};

class Check {
 public:
  Check(std::string_view name, int size) : name_(name), size_(size) {}

  void tensor(const at::Tensor& tensor) const {
    if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.is_contiguous())
      refuse("a tensor is not dense and contiguous");
  }
  /// `whole` has `parts` times the elements of `part`.
  void pair(const at::Tensor& whole, const at::Tensor& part, std::int64_t parts) const {
    tensor(whole);
    tensor(part);
    if (whole.scalar_type() != part.scalar_type() || whole.device() != part.device()) {
      refuse(fmt::format("its tensors are of {} on {}, and {} on {}", c10::toString(whole.scalar_type()),
                         whole.device().str(), c10::toString(part.scalar_type()), part.device().str()));
    }
    if (whole.numel() != parts * part.numel()) {
      refuse(fmt::format("its tensors have {} and {} elements, and the one must have {} times those of the other",
                         whole.numel(), part.numel(), parts));
    }
  }
  void rank(int rank) const {
    if (rank < 0 || rank >= size_) refuse(fmt::format("there is no rank {}", rank));
  }
  void divides(const at::Tensor& tensor) const {
    if (tensor.numel() % size_ != 0)
      refuse(fmt::format("its tensor has {} elements, which do not divide evenly", tensor.numel()));
  }

 private:
  [[noreturn]] void refuse(std::string_view why) const {
    throw UsageError(fmt::format("parallel: {} among {} processes: {}", name_, size_, why));
  }
  std::string_view name_;
  int size_;
};

}  // namespace

std::string_view name_of(const Collective& what) { return kNames.at(what.index()); }

Bytes bytes_of(const Collective& what) {
  return std::visit(Match{
                        [](const AllGather& c) { return static_cast<Bytes>(c.mine.nbytes()); },
                        [](const ReduceScatter& c) { return static_cast<Bytes>(c.all.nbytes()); },
                        [](const AllToAll& c) { return static_cast<Bytes>(c.sent.nbytes()); },
                        [](const Barrier&) { return Bytes{0}; },
                        [](const auto& c) { return static_cast<Bytes>(c.tensor.nbytes()); },
                    },
                    what);
}

void check(const Collective& what, int size) {
  const Check check(name_of(what), size);
  std::visit(Match{
                 [&](const AllReduce& c) { check.tensor(c.tensor); },
                 [&](const AllGather& c) { check.pair(c.all, c.mine, size); },
                 [&](const ReduceScatter& c) { check.pair(c.all, c.mine, size); },
                 [&](const AllToAll& c) {
                   check.pair(c.received, c.sent, 1);
                   check.divides(c.sent);
                 },
                 [&](const Broadcast& c) {
                   check.tensor(c.tensor);
                   check.rank(c.root);
                 },
                 [&](const Send& c) {
                   check.tensor(c.tensor);
                   check.rank(c.to);
                 },
                 [&](const Receive& c) {
                   check.tensor(c.tensor);
                   check.rank(c.from);
                 },
                 [](const Barrier&) {},
             },
             what);
}

}  // namespace snug::parallel
