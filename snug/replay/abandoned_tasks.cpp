#include "snug/replay/abandoned_tasks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include "snug/record/recording.h"
#include "snug/replay/make_node.h"

namespace snug::replay {
namespace {

/// Comes after everything else in the queue: tasks are taken by falling sequence number, and those of a pass that is
/// gone are thrown away as they are taken.
class Last final : public torch::autograd::Node {
 public:
  Last() : Node(/*sequence_nr=*/0) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { return {}; }
};

}  // namespace

void release_abandoned_tasks(std::vector<c10::Device> devices) noexcept {
  try {
    devices.emplace_back(c10::kCPU);
    const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);
    const at::AutoGradMode grad_mode(true);
    torch::autograd::edge_list edges;
    torch::autograd::variable_list nothing;
    for (const c10::Device device : devices) {
      nothing.push_back(at::zeros({0}, at::TensorOptions(device)));
      auto node = make_node<Last>();
      node->add_input_metadata(nothing.back());
      edges.emplace_back(std::move(node), 0);
    }
    torch::autograd::Engine::get_default_engine().execute(edges, nothing, /*keep_graph=*/false, /*create_graph=*/false,
                                                          /*accumulate_grad=*/true, {});
  } catch (...) {  // then a later pass does it
  }
}

}  // namespace snug::replay
