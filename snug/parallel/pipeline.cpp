#include "snug/parallel/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "snug/base/agreement.h"
#include "snug/base/errors.h"
#include "snug/parallel/reduction.h"
#include "snug/parallel/tensor_group.h"
#include "snug/record/micro_batch.h"

namespace snug::parallel {
namespace {

using Kind = plan::PipelineAction::Kind;

/// What is said of a tensor that comes: which step it is of, its type, the number of dimensions, and these. Of what
/// does not come any more, as its stage has failed: kFailed in place of a type, and the stage. Each comes once in a
/// step, whatever fails.
constexpr std::int64_t kMostDimensions = 8, kHeader = 4 + kMostDimensions, kFailed = -1;

enum class Way : std::uint8_t { Onward, Back };

at::Tensor header_of(const at::Tensor& tensor, std::int64_t step) {
  if (tensor.dim() > kMostDimensions) {
    throw UsageError(fmt::format("pipeline: a stage hands on a tensor of {} dimensions; it may have {} at most",
                                 tensor.dim(), kMostDimensions));
  }
  at::Tensor header = at::zeros({kHeader}, at::kLong);
  auto* const fields = header.mutable_data_ptr<std::int64_t>();
  fields[0] = step;
  fields[1] = static_cast<std::int64_t>(tensor.scalar_type());
  fields[2] = tensor.dim();
  fields[3] = static_cast<std::int64_t>(tensor.device().type());
  std::ranges::copy(tensor.sizes(), fields + 4);
  return header;
}

/// On the device of the sender's type that this process uses.
at::Tensor room_for(const at::Tensor& header) {
  const auto* const fields = header.const_data_ptr<std::int64_t>();
  const std::int64_t type = fields[1], dimensions = fields[2], device_type = fields[3];
  const bool known = type >= 0 && type < static_cast<std::int64_t>(at::ScalarType::NumOptions) && dimensions >= 0 &&
                     dimensions <= kMostDimensions && device_type >= 0 &&
                     device_type < static_cast<std::int64_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES) &&
                     std::all_of(fields + 4, fields + 4 + dimensions, [](std::int64_t size) { return size >= 0; });
  if (!known) {
    throw GroupFailed(
        fmt::format("pipeline: a stage announced a tensor of type {}, {} dimensions, on device type {}; "
                    "all processes must run the same build of snug",
                    type, dimensions, device_type));
  }
  const std::vector<std::int64_t> sizes(fields + 4, fields + 4 + dimensions);
  const auto device = static_cast<c10::DeviceType>(device_type);
  return at::empty(sizes, at::TensorOptions(static_cast<at::ScalarType>(type)).device(device));
}

/// Where backward leaves the gradient of what a stage was given.
using Slot = std::shared_ptr<at::Tensor>;
struct HeldSlot : torch::CustomClassHolder {
  explicit HeldSlot(Slot held) : slot(std::move(held)) {}
  Slot slot;
};

/// What a stage was given, as something that gets a gradient. The graph does not hold it, as it would a leaf.
class Given : public torch::autograd::Function<Given> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& /*root*/,
                            const at::Tensor& contents, const Slot& slot) {
    context->saved_data["slot"] = c10::IValue::make_capsule(c10::make_intrusive<HeldSlot>(slot));
    return contents.alias();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto held = context->saved_data["slot"].toCapsule();
    *static_cast<HeldSlot*>(held.get())->slot =
        gradients[0];  // NOLINT(cppcoreguidelines-pro-type-static-cast-downcast)
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

/// One engine run from where a tensor has been made, which itself may be gone.
void backward_from(const torch::autograd::Edge& edge, const at::Tensor& gradient) {
  torch::autograd::Engine::get_default_engine().execute({edge}, {gradient}, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

}  // namespace

/// The messages and activations of one step.
class Pipeline::Step {
 public:
  enum class Does : std::uint8_t { Forward, Both };
  Step(Pipeline& of, int micro_batches, Does does)
      : group_(*of.group_),
        pipeline_(of),
        does_(does),
        actions_(plan::actions_of(of.schedule_, {.processes = group_.size(), .micro_batches = micro_batches})),
        done_(actions_.size(), -1),
        last_(group_.size() * static_cast<int>(of.stages_.size()) - 1),
        losses_(of.has_loss() ? static_cast<std::size_t>(micro_batches) : 0) {
    for (std::size_t rank = 0; rank < actions_.size(); ++rank) {
      if (does == Does::Forward)
        std::erase_if(actions_[rank], [](const auto& one) { return one.kind != Kind::Forward; });
      for (std::size_t i = 0; i < actions_[rank].size(); ++i) {
        const auto& [kind, micro_batch, chunk] = actions_[rank][i];
        const int stage = chunk * group_.size() + static_cast<int>(rank);
        place_.emplace(std::tuple{kind, stage, micro_batch}, static_cast<int>(i));
      }
    }
  }

  std::vector<at::Tensor> run() {
    const auto& own = actions_.at(static_cast<std::size_t>(group_.rank()));
    for (std::size_t i = 0; i < own.size(); ++i) {
      const int stage = own[i].chunk * group_.size() + group_.rank();
      try {
        does_ == Does::Forward         ? evaluate(own[i], stage)
        : own[i].kind == Kind::Forward ? forward(own[i], stage)
                                       : backward(own[i], stage);
      } catch (...) {
        end_early(i);
        throw;
      }
    }
    for (Sent& one : sent_) one.wait();
    return std::move(losses_);
  }
  ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  [[nodiscard]] int most_alive() const noexcept { return most_alive_; }

 private:
  struct Alive {
    std::shared_ptr<at::Tensor> of_input = std::make_shared<at::Tensor>();  // its gradient
    torch::autograd::Edge made;
    at::Tensor first_gradient;  // of the loss
  };
  struct Sent {
    ProcessGroup::Begun header, contents;
    int to, place;  // of the action that receives it, among its process's
    void wait() {
      header.wait();
      contents.wait();
    }
  };

  void evaluate(const plan::PipelineAction& action, int stage) {
    const at::NoGradGuard no_grad;
    at::Tensor input;
    if (stage > 0) input = take(stage - 1, action.micro_batch, Way::Onward);
    const at::Tensor made = pipeline_.stages_[static_cast<std::size_t>(action.chunk)](input, action.micro_batch);
    if (stage == last_) {
      losses_[static_cast<std::size_t>(action.micro_batch)] = made;
    } else {
      // So many have come to who waits for them, whatever the schedule: no more need be there.
      while (sent_.size() > 2 * done_.size() * pipeline_.stages_.size()) {
        sent_.front().wait();
        sent_.pop_front();
      }
      give(made.contiguous(), stage, action.micro_batch, Way::Onward);
    }
  }

  void forward(const plan::PipelineAction& action, int stage) {
    Alive alive;
    at::Tensor made;
    {
      at::Tensor input;
      if (stage > 0) input = take(stage - 1, action.micro_batch, Way::Onward);
      const MicroBatch here(action.chunk);  // behind what comes and goes between processes
      if (stage > 0) input = Given::apply(at::zeros({}).requires_grad_(), input, alive.of_input);
      made = pipeline_.stages_[static_cast<std::size_t>(action.chunk)](input, action.micro_batch);
      // Nothing in front of the first that trains wants one; it comes all the same.
      if (stage == 0 && made.defined() && !made.requires_grad())
        made = Given::apply(at::zeros({}).requires_grad_(), made, alive.of_input);
    }
    if (!made.defined() || !made.requires_grad())
      throw UsageError(fmt::format("pipeline: stage {} has made nothing that needs a gradient", stage));
    alive.made = torch::autograd::impl::gradient_edge(made);
    if (stage == last_) {
      if (made.numel() != 1)
        throw UsageError(fmt::format("pipeline: the last stage has made {}, and no scalar", c10::str(made.sizes())));
      const at::NoGradGuard no_grad;
      alive.first_gradient = at::ones_like(made);
      losses_[static_cast<std::size_t>(action.micro_batch)] = made.detach();
    } else {
      give(made.detach().contiguous(), stage, action.micro_batch, Way::Onward);
    }
    alive_.emplace(std::pair{action.chunk, action.micro_batch}, std::move(alive));
    most_alive_ = std::max(most_alive_, static_cast<int>(alive_.size()));
  }

  void backward(const plan::PipelineAction& action, int stage) {
    const auto found = alive_.find({action.chunk, action.micro_batch});
    const at::Tensor gradient =
        stage == last_ ? found->second.first_gradient : take(stage + 1, action.micro_batch, Way::Back);
    backward_from(found->second.made, gradient);
    if (stage > 0) {
      const at::Tensor of_input = std::exchange(*found->second.of_input, at::Tensor());
      if (!of_input.defined())
        throw UsageError(fmt::format("pipeline: stage {} has made no gradient of what it was given", stage));
      give(of_input.contiguous(), stage, action.micro_batch, Way::Back);
    }
    alive_.erase(found);
  }

  [[nodiscard]] int rank_of(int stage) const { return stage % group_.size(); }
  /// By the stage that sends, one for what is said of it and one for itself.
  [[nodiscard]] int tag_of(int stage, int micro_batch, Way way) const {
    return 1 + 2 * (2 * (micro_batch * (last_ + 1) + stage) + static_cast<int>(way));
  }

  void give(const at::Tensor& tensor, int stage, int micro_batch, Way way) {
    const bool onward = way == Way::Onward;
    const int for_stage = onward ? stage + 1 : stage - 1, to = rank_of(for_stage),
              tag = tag_of(stage, micro_batch, way);
    if (to == group_.rank()) {
      at_home_.emplace(tag, tensor);
      return;
    }
    const Kind receives = onward ? Kind::Forward : Kind::Backward;
    const at::Tensor header = header_of(tensor, number_);
    given_.insert(tag);
    sent_.push_back({group_.begin(Send{header, to, tag}), group_.begin(Send{tensor, to, tag + 1}), to,
                     place_.at({receives, for_stage, micro_batch})});
  }
  at::Tensor take(int from_stage, int micro_batch, Way way) {
    const int from = rank_of(from_stage), tag = tag_of(from_stage, micro_batch, way);
    if (from == group_.rank()) return at_home_.extract(tag).mapped();
    const at::Tensor tensor = receive(from, tag);
    const Kind sends = way == Way::Onward ? Kind::Forward : Kind::Backward;
    has_come_to(from, place_.at({sends, from_stage, micro_batch}));
    return tensor;
  }
  at::Tensor receive(int from, int tag) {
    const at::NoGradGuard no_grad;
    at::Tensor& header = headers_[tag];
    if (!header.defined()) {
      const at::Tensor comes = at::zeros({kHeader}, at::kLong);
      group_.run(Receive{comes, from, tag});
      header = comes;
    }
    const auto* const fields = header.const_data_ptr<std::int64_t>();
    if (fields[0] != number_) {
      throw Error(
          fmt::format("pipeline: process {} of {} is in its step {}, and this one in its {}; all of them run the "
                      "same steps",
                      from, group_.size(), fields[0], number_));
    }
    if (fields[1] == kFailed) {
      received_.insert(tag);
      throw EndedByAnother(
          fmt::format("pipeline: the step ends here, as stage {} in process {} of {} has failed, or has been ended by "
                      "another; what has failed says why",
                      fields[2], from, group_.size()));
    }
    at::Tensor tensor = room_for(header);
    group_.run(Receive{tensor, from, tag + 1});
    received_.insert(tag);
    headers_.erase(tag);
    return tensor;
  }
  /// Whatever would come from here on, and go, does all the same, as nothing: nobody is left waiting, and the next step
  /// finds nothing of this one on its way.
  void end_early(std::size_t from_action) noexcept {
    if (!group_.has_others()) return;
    alive_.clear();  // there has to be room for what comes
    at_home_.clear();
    losses_.clear();
    // Who shares layers with this process would wait for it, and so would not come to what is received here.
    if (tensor_groups() > 0) end_tensor_groups();
    try {
      tell_others(from_action);
      receive_the_rest(from_action);
      for (Sent& one : sent_) one.wait();
    } catch (...) {  // what has failed is reported; that not even this goes, the others see at once
      group_.end();
    }
  }
  enum class Side : std::int8_t { Sender = -1, Receiver = 1 };
  /// visit(stage of this process, that of the other process, micro-batch, way) of the messages from that action on of
  /// which the other one is sender, or receiver.
  template <class Visit>
  void each_message(Side other_is, std::size_t from_action, const Visit& visit) {
    const auto& own = actions_.at(static_cast<std::size_t>(group_.rank()));
    for (std::size_t i = from_action; i < own.size(); ++i) {
      const int stage = own[i].chunk * group_.size() + group_.rank();
      const Way way = own[i].kind == Kind::Forward ? Way::Onward : Way::Back;
      const int other = stage + static_cast<int>(other_is) * (way == Way::Onward ? 1 : -1);
      if (other < 0 || other > last_ || rank_of(other) == group_.rank()) continue;
      visit(stage, other, own[i].micro_batch, way);
    }
  }
  void tell_others(std::size_t from_action) {
    each_message(Side::Receiver, from_action, [&](int stage, int other, int micro_batch, Way way) {
      const int tag = tag_of(stage, micro_batch, way);
      if (given_.contains(tag)) return;
      const at::Tensor header = at::zeros({kHeader}, at::kLong);
      auto* const fields = header.mutable_data_ptr<std::int64_t>();
      fields[0] = number_;
      fields[1] = kFailed;
      fields[2] = stage;
      sent_.push_back({group_.begin(Send{header, rank_of(other), tag}), {}, 0, 0});
    });
  }
  void receive_the_rest(std::size_t from_action) {
    each_message(Side::Sender, from_action, [&](int /*stage*/, int other, int micro_batch, Way way) {
      const int tag = tag_of(other, micro_batch, way);
      if (received_.contains(tag)) return;
      try {
        (void)receive(rank_of(other), tag);
      } catch (const EndedByAnother&) {  // nor does it come
      }
    });
  }
  /// What it has received by then is held no longer.
  void has_come_to(int rank, int place) {
    int& done = done_[static_cast<std::size_t>(rank)];
    done = std::max(done, place);
    std::erase_if(sent_, [&](Sent& one) {
      if (one.to != rank || one.place > done) return false;
      one.wait();
      return true;
    });
  }

  ProcessGroup& group_;
  Pipeline& pipeline_;
  Does does_;
  std::vector<std::vector<plan::PipelineAction>> actions_;  // by rank
  std::map<std::tuple<Kind, int, int>, int> place_;         // by kind, stage and micro-batch
  std::vector<int> done_;                                   // by rank: the last action that it is known to have done
  int last_;                                                // stage
  std::int64_t number_ = group_.number_step();              // of the step
  std::vector<at::Tensor> losses_;
  std::map<std::pair<int, int>, Alive> alive_;  // by chunk and micro-batch
  std::map<int, at::Tensor> at_home_;           // between stages of this process, by tag
  std::map<int, at::Tensor> headers_;           // of what has still to come, by tag
  std::set<int> received_, given_;              // tags
  std::list<Sent> sent_;
  int most_alive_ = 0;
};

Pipeline::Pipeline(std::shared_ptr<ProcessGroup> group, plan::PipelineSchedule schedule,
                   std::vector<PipelineStage> stages, std::vector<SharedParameter> shared)
    : group_(std::move(group)), schedule_(schedule), stages_(std::move(stages)), shared_(std::move(shared)) {
  if (std::holds_alternative<plan::ZeroBubble>(schedule_)) {
    throw UsageError(
        "pipeline: zero_bubble needs the gradients of weights apart from those of inputs, which autograd makes at "
        "once; choose 1f1b or interleaved");
  }
  if (static_cast<int>(stages_.size()) != plan::chunks_of(schedule_)) {
    throw UsageError(fmt::format("pipeline: {} stages in this process, and {} are needed for {}", stages_.size(),
                                 plan::chunks_of(schedule_), plan::name_of(schedule_)));
  }
}

std::vector<at::Tensor> Pipeline::evaluate(int micro_batches) {
  return Step(*this, micro_batches, Step::Does::Forward).run();
}

std::vector<at::Tensor> Pipeline::step(int micro_batches) {
  std::vector<at::Tensor> before;  // of shared parameters: what is there has been added up
  for (const SharedParameter& shared : shared_)
    before.push_back(std::exchange(at::Tensor(shared.parameter).mutable_grad(), at::Tensor()));
  Step step(*this, micro_batches, Step::Does::Both);
  std::vector<at::Tensor> losses = step.run();
  most_alive_ = step.most_alive();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < shared_.size(); ++i) {
    const SharedParameter& shared = shared_[i];
    at::Tensor& gradient = at::Tensor(shared.parameter).mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(shared.parameter);
    gradient = sum_by_rank(*shared.group, gradient);
    if (before[i].defined()) gradient = before[i].add_(gradient);
  }
  return losses;
}

}  // namespace snug::parallel
