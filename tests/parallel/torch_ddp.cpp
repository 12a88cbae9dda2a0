#include "tests/parallel/torch_ddp.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <string>
#include <utility>

#include "snug/parallel/buckets.h"
#include "tests/parallel/reducer.h"

namespace snug::testing {
struct TorchDdp::State {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::unique_ptr<c10d::Reducer> reducer;
};

TorchDdp::TorchDdp(std::vector<at::Tensor> parameters, const parallel::Launched& launched, Bytes bucket)
    : state_(std::make_unique<State>()) {
  c10d::TCPStoreOptions there;
  there.port = static_cast<std::uint16_t>(launched.port);
  there.waitWorkers = false;
  there.useLibUV = false;
  static int made = 0;
  const auto store = c10::make_intrusive<c10d::PrefixStore>("torch_ddp/" + std::to_string(made++),
                                                            c10::make_intrusive<c10d::TCPStore>(launched.host, there));
  const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, launched.rank, launched.size, options);
  state_->group = c10::make_intrusive<c10d::ProcessGroup>(store, launched.rank, launched.size);
  state_->group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  state_->group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  state_->group->setGroupName("torch_ddp");
  state_->reducer = reducer_of(parameters, parallel::buckets_of(parameters, bucket), state_->group, false, true);
}
TorchDdp::~TorchDdp() = default;

void TorchDdp::before_forward() { state_->reducer->prepare_for_forward(); }
void TorchDdp::before_backward(const at::Tensor& loss) { state_->reducer->prepare_for_backward({loss}); }

}  // namespace snug::testing
