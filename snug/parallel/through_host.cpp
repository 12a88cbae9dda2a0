#include "snug/parallel/through_host.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "snug/memory/tag.h"
#include "snug/record/unseen.h"

namespace snug::parallel {
namespace {

at::Tensor place_on_host(const at::Tensor& like) {
  const memory::TagScope tag(memory::Tag::Staging);
  return at::empty_like(like, like.options().device(at::kCPU));
}

/// Whoever is told that its contents are on the host may have written them in another stream than the one of now.
void let_streams_finish(const at::Tensor& tensor) {
  const c10::DeviceGuard current(tensor.device());  // else CUDA would begin to use the thread's, for nothing
  c10::impl::VirtualGuardImpl(tensor.device().type()).synchronizeDevice(tensor.device().index());
}

at::Tensor copied_to_host(const at::Tensor& tensor) {
  at::Tensor copy = place_on_host(tensor);
  copy.copy_(tensor);
  return copy;
}

/// A collective on the host, and where its results go.
class ThroughHost final : public c10d::Work {
 public:
  /// `to` is empty where it has none.
  ThroughHost(c10::intrusive_ptr<c10d::Work> on_host, std::vector<at::Tensor> to, std::vector<at::Tensor> from)
      : on_host_(std::move(on_host)), to_(std::move(to)), from_(std::move(from)) {}
  /// Nobody waits any more where the group has failed. Then this may run while the process ends and devices are gone:
  /// what is on them stays.
  ~ThroughHost() override {
    for (at::Tensor& tensor : to_) (void)tensor.unsafeReleaseTensorImpl();
  }
  ThroughHost(const ThroughHost&) = delete;
  ThroughHost& operator=(const ThroughHost&) = delete;

  bool isCompleted() override { return on_host_->isCompleted() && to_.empty(); }
  bool isSuccess() const override { return on_host_->isSuccess(); }
  std::exception_ptr exception() const override { return on_host_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const record::Unseen unseen;
    const at::AutoDispatchBelowADInplaceOrView written_before;  // as operators of collectives have told
    const bool is_done = on_host_->wait(timeout);
    for (std::size_t i = 0; i < to_.size(); ++i) to_[i].copy_(from_[i]);
    to_.clear();
    from_.clear();
    return is_done;
  }

 private:
  c10::intrusive_ptr<c10d::Work> on_host_;
  std::vector<at::Tensor> to_, from_;
};

class HostBackend final : public c10d::Backend {
 public:
  explicit HostBackend(c10::intrusive_ptr<c10d::Backend> of_host)
      : c10d::Backend(of_host->getRank(), of_host->getSize()), of_host_(std::move(of_host)) {}

  const std::string getBackendName() const override {  // NOLINT(readability-const-return-type)
    return "through the host";
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    return in_place(tensors, [&](std::vector<at::Tensor>& here) { return of_host_->allreduce(here, options); });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override {
    return in_place(tensors, [&](std::vector<at::Tensor>& here) { return of_host_->broadcast(here, options); });
  }
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& mine, at::Tensor& all,
                                                      const c10d::ReduceScatterOptions& options) override {
    const record::Unseen unseen;
    let_streams_finish(all);
    at::Tensor mine_here = place_on_host(mine), all_here = copied_to_host(all);
    return c10::make_intrusive<ThroughHost>(of_host_->_reduce_scatter_base(mine_here, all_here, options),
                                            std::vector{mine}, std::vector{mine_here});
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int to, int tag) override {
    const record::Unseen unseen;
    let_streams_finish(tensors.front());
    std::vector<at::Tensor> here{copied_to_host(tensors.front())};
    return c10::make_intrusive<ThroughHost>(of_host_->send(here, to, tag), std::vector<at::Tensor>(), here);
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int from, int tag) override {
    const record::Unseen unseen;
    let_streams_finish(tensors.front());
    std::vector<at::Tensor> here{place_on_host(tensors.front())};
    return c10::make_intrusive<ThroughHost>(of_host_->recv(here, from, tag), tensors, here);
  }

 private:
  template <class Begin>
  static c10::intrusive_ptr<c10d::Work> in_place(const std::vector<at::Tensor>& tensors, const Begin& begin) {
    const record::Unseen unseen;
    let_streams_finish(tensors.front());
    std::vector<at::Tensor> here;
    for (const at::Tensor& tensor : tensors) here.push_back(copied_to_host(tensor));
    return c10::make_intrusive<ThroughHost>(begin(here), tensors, here);
  }

  c10::intrusive_ptr<c10d::Backend> of_host_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> through_host(c10::intrusive_ptr<c10d::Backend> of_host) {
  return c10::make_intrusive<HostBackend>(std::move(of_host));
}

}  // namespace snug::parallel
