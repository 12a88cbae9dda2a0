// A group of c10d whose works somebody else keeps, as a profiler may.
#include "snug/parallel/c10d_group.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace snug::parallel {
namespace {

class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds /*timeout*/) override { return true; }
};

/// One process, whose all-reduces are done at once; it keeps their works where it is told to.
class KeepingBackend final : public c10d::Backend {
 public:
  explicit KeepingBackend(bool keeps) : c10d::Backend(0, 1), keeps_(keeps) {}
  const std::string getBackendName() const override { return "keeping"; }  // NOLINT(readability-const-return-type)
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& /*tensors*/,
                                           const c10d::AllreduceOptions& /*options*/) override {
    auto work = c10::make_intrusive<DoneWork>();
    if (keeps_) kept_.push_back(work);
    return work;
  }

 private:
  bool keeps_;
  std::vector<c10::intrusive_ptr<c10d::Work>> kept_;
};

double seconds_of(bool keeps, int times) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, c10::make_intrusive<KeepingBackend>(keeps));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  C10dGroup tested(std::move(group), nullptr, 0, {0});
  const at::Tensor ones = torch::ones({4});
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) tested.run(AllReduce{ones});
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

TEST(C10dGroup, WaitsOnceForWorksThatOthersKeep) {
  const double kept = seconds_of(true, 20);
  EXPECT_GT(kept, 0.9) << "once, for those that are let go of a little later";
  EXPECT_LT(kept, 5) << "and not each time";
  EXPECT_LT(seconds_of(false, 20), 0.9);
}

}  // namespace
}  // namespace snug::parallel
