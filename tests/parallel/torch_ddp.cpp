#include "tests/parallel/torch_ddp.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace snug::testing {
namespace {

/// LibTorch 2.12 and newer take a list of bucket sizes too.
template <class R = c10d::Reducer>
std::unique_ptr<R> reducer_of(const std::vector<at::Tensor>& parameters, c10::intrusive_ptr<c10d::ProcessGroup> group,
                              std::int64_t bytes) {
  const std::vector<bool> dense(parameters.size(), false);
  const std::unordered_map<std::size_t, std::string> names;
  std::vector<std::vector<std::size_t>> buckets(1);
  std::int64_t taken = 0;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const auto more = static_cast<std::int64_t>(parameters[i].nbytes());
    if (taken > 0 && taken + more > bytes) {
      buckets.emplace_back();
      taken = 0;
    }
    buckets.back().push_back(i);
    taken += more;
  }
  using Sizes = std::vector<std::int64_t>;
  if constexpr (std::is_constructible_v<R, decltype(parameters), decltype(buckets), decltype(group), decltype(dense),
                                        std::int64_t, bool, bool, decltype(names), std::int64_t, bool, bool, Sizes>) {
    return std::make_unique<R>(parameters, buckets, std::move(group), dense, bytes, false, true, names, bytes, false,
                               false, Sizes{});
  } else {
    return std::make_unique<R>(parameters, buckets, std::move(group), dense, bytes, false, true, names, bytes, false,
                               false);
  }
}

}  // namespace

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
  state_->reducer = reducer_of(parameters, state_->group, bucket);
}
TorchDdp::~TorchDdp() = default;

void TorchDdp::before_forward() { state_->reducer->prepare_for_forward(); }
void TorchDdp::before_backward(const at::Tensor& loss) { state_->reducer->prepare_for_backward({loss}); }

}  // namespace snug::testing
