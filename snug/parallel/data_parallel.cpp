#include "snug/parallel/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>
#include <variant>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/parallel/bucket_gradients.h"
#include "snug/parallel/bucket_layout.h"
#include "snug/parallel/bucket_shards.h"
#include "snug/record/trial_gradients.h"

namespace snug::parallel {
namespace {

/// Beside the backward pass go on: the first half of a bucket's reduction, and the second of the one before.
constexpr std::size_t kUnderWay = 2;

Bytes usual_bucket(const std::vector<at::Tensor>& parameters) {
  constexpr Bytes kParts = 16;
  Bytes all = 0;
  for (const at::Tensor& p : parameters) all += static_cast<Bytes>(p.nbytes());
  return std::clamp(all / kParts, 64_KiB, 25_MiB);
}

void check(const at::Tensor& parameter, const DataParallelOptions& options) {
  if (!parameter.is_leaf() || parameter.layout() != at::kStrided)
    throw UsageError(
        fmt::format("parallel: a tensor of shape {} is no parameter: a dense leaf", c10::str(parameter.sizes())));
  if (options.leaves == DataParallelOptions::Leaves::Shards && !parameter.is_contiguous()) {
    throw UsageError(fmt::format(
        "parallel: a parameter of shape {} and strides {} cannot be divided into shards; make it contiguous",
        c10::str(parameter.sizes()), c10::str(parameter.strides())));
  }
}

class WhenAccumulated final : public torch::autograd::FunctionPostHook {
 public:
  explicit WhenAccumulated(std::function<void()> call) : call_(std::move(call)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& /*inputs*/) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

}  // namespace

class DataParallel::Passes : public std::enable_shared_from_this<DataParallel::Passes> {
 public:
  /// `given`: the parameters, some of which may come twice, or need no gradient.
  Passes(const std::vector<at::Tensor>& given, std::shared_ptr<ProcessGroup> group, const DataParallelOptions& options)
      : group_(std::move(group)), options_(options) {
    std::unordered_set<const void*> once;  // tied weights come twice
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (!given[i].requires_grad() || !once.insert(given[i].unsafeGetTensorImpl()).second) continue;
      check(given[i], options);
      parameters_.push_back(given[i]);
      given_as_.push_back(i);
    }
    std::vector<std::int64_t> elements;
    for (const at::Tensor& p : parameters_) elements.push_back(p.numel());
    bucket_of_.resize(parameters_.size());
    std::set<std::size_t> divided;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (shard_of(parameters_[i]).defined()) divided.insert(i);
    }
    const Bytes most = options_.bucket.value_or(usual_bucket(parameters_));
    for (Bucket& members : buckets_of(parameters_, most, divided)) {
      for (const std::size_t i : members) bucket_of_[i] = buckets_.size();
      const Divided how = options_.leaves == DataParallelOptions::Leaves::Gradients ? Divided::Not
                          : divided.contains(members.front())                       ? Divided::Each
                                                                                    : Divided::Whole;
      BucketLayout layout(elements, members, group_->size(), how);
      std::vector<Strip> strips = layout.strips(most / static_cast<Bytes>(parameters_[members.front()].element_size()));
      buckets_.push_back({std::move(members), std::move(layout), std::move(strips), how, {}});
    }
    if (options_.leaves == DataParallelOptions::Leaves::Shards) own_shards();
  }

  void hook_up() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto node = torch::autograd::impl::grad_accumulator(parameters_[i]);
      const auto call = [self = weak_from_this(), i] {
        if (const auto passes = self.lock()) passes->accumulated(i);
      };
      const auto key = node->add_post_hook(std::make_unique<WhenAccumulated>(call));
      hooks_.emplace_back(std::move(node), key);
    }
  }
  void unhook() {
    for (auto& [node, key] : hooks_) node->del_post_hook(key);
    hooks_.clear();
  }

  void hand_in(Reduction::Purpose purpose) {
    const std::lock_guard lock(mutex_);
    if (accumulating_ > 0) return;
    start(kNoTask, purpose == Reduction::Purpose::Trial ? purpose : purpose_of(0));
    finish();
  }

  void accumulate(int levels) {
    const std::lock_guard lock(mutex_);
    accumulating_ += levels;
  }
  [[nodiscard]] const std::vector<Shard>& shards() const noexcept { return shards_; }
  void gather(Reduction::Purpose purpose) {
    if (options_.leaves == DataParallelOptions::Leaves::Gradients) return;  // each has updated all of it
    std::deque<BucketWeights> under_way;
    for (const OneBucket& bucket : buckets_) {
      if (bucket.divided == Divided::Each) continue;
      for (const Strip& strip : bucket.strips) {
        under_way.emplace_back(*group_, of(bucket), strip, bucket.owned, purpose);
        if (under_way.size() < 2) continue;
        under_way.front().finish();
        under_way.pop_front();
      }
    }
    for (BucketWeights& weights : under_way) weights.finish();
    // Nobody fetches a shard that another process has not updated yet.
    if (!options_.divided.empty() && purpose == Reduction::Purpose::Sums) group_->run(Barrier{});
  }
  [[nodiscard]] Bytes bytes_of_shards(int member) const {
    const std::vector<int>& members = group_->members();
    const auto found = std::ranges::find(members, member);
    Bytes bytes = 0;
    if (found == members.end() || options_.leaves == DataParallelOptions::Leaves::Gradients) return bytes;
    for (const OneBucket& bucket : buckets_) {
      for (const Piece& piece : bucket.layout.pieces_of(static_cast<int>(found - members.begin())))
        bytes += piece.count * static_cast<Bytes>(parameters_[piece.parameter].element_size());
    }
    return bytes;
  }
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }
  [[nodiscard]] std::size_t buckets() const noexcept { return buckets_.size(); }

 private:
  struct OneBucket {
    Bucket members;
    BucketLayout layout;
    std::vector<Strip> strips;  // in which parts of it go, where gradients are left in shards
    Divided divided = Divided::Whole;
    std::vector<Owned> owned;  // none where gradients are left whole
  };
  [[nodiscard]] BucketOf of(const OneBucket& bucket) const { return {parameters_, bucket.members, bucket.layout}; }

  /// Of one whose contents are divided; else undefined.
  [[nodiscard]] at::Tensor shard_of(const at::Tensor& parameter) const {
    for (const DividedParameter& divided : options_.divided) {
      if (divided.parameter.is_same(parameter)) return divided.shard;
    }
    return {};
  }

  void own_shards() {
    std::vector<std::pair<std::size_t, Shard>> shards;
    for (OneBucket& bucket : buckets_) {
      for (const Piece& piece : bucket.layout.pieces_of(group_->rank())) {
        const at::Tensor& whole = parameters_[piece.parameter];
        const at::Tensor part = bucket.divided == Divided::Each
                                    ? shard_of(whole)
                                    : flat(whole).narrow(0, piece.first, piece.count).requires_grad_();
        bucket.owned.push_back({piece, part});
        shards.emplace_back(piece.parameter, Shard{part, whole, given_as_[piece.parameter], piece.first});
      }
    }
    std::ranges::sort(shards, {}, [](const auto& one) { return one.first; });  // of each one at most
    for (auto& [parameter, shard] : shards) shards_.push_back(std::move(shard));
  }

  /// The gradient of parameter `i` is whole.
  void accumulated(std::size_t i) {
    const std::lock_guard lock(mutex_);
    if (accumulating_ > 0) return;
    begin_pass(i);
    ++arrived_[bucket_of_[i]];
    while (next_ < buckets_.size() && arrived_[next_] == buckets_[next_].members.size()) {
      if (purpose_ == Reduction::Purpose::Sums) ++counts_.early;
      hand_in_next();
    }
  }

  /// The engine holds it as long as a pass goes on, or has thrown and is being left.
  struct Pass {
    std::weak_ptr<Passes> of;
    int task;
    Pass(std::weak_ptr<Passes> whose, int id) : of(std::move(whose)), task(id) {}
    ~Pass() {
      if (const auto passes = of.lock()) passes->left(task);
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
  };

  /// Unless this is the one that goes on.
  void begin_pass(std::size_t first) {
    const int task = torch::autograd::get_current_graph_task_id();
    if (task == task_) return;
    if (task_ != kNoTask && !pass_.expired()) {
      throw Error(
          "parallel: a backward pass has begun inside of another that hands in the same gradients, as a reentrant "
          "checkpoint does; use snug::checkpoint, which needs none");
    }
    const auto pass = std::make_shared<Pass>(weak_from_this(), task);
    pass_ = pass;
    start(task, purpose_of(first));
    torch::autograd::Engine::get_default_engine().queue_callback([pass] {
      if (const auto passes = pass->of.lock()) passes->end_pass(pass->task);
    });
  }
  /// Of gradients among which is that of a parameter.
  [[nodiscard]] Reduction::Purpose purpose_of(std::size_t parameter) const {
    const bool is_trial = parameter < parameters_.size() && record::TrialGradients::on(parameters_[parameter]);
    return is_trial ? Reduction::Purpose::Trial : Reduction::Purpose::Sums;
  }
  /// What a pass that threw has handed in is of no use.
  void left(int task) {
    const std::lock_guard lock(mutex_);
    if (task != task_) return;
    under_way_.clear();
    task_ = kNoTask;
    // Of which some strips may be there, and others not.
    for (OneBucket& bucket : buckets_) {
      for (Owned& owned : bucket.owned) {
        if (!owned.had_gradient) owned.tensor.mutable_grad() = at::Tensor();
      }
    }
  }

  void start(int task, Reduction::Purpose purpose) {
    task_ = task;
    purpose_ = purpose;
    next_ = 0;
    under_way_.clear();
    arrived_.assign(buckets_.size(), 0);
    has_gradient_.assign(parameters_.size(), 0);
    for (OneBucket& bucket : buckets_) {
      for (Owned& owned : bucket.owned) owned.had_gradient = owned.tensor.grad().defined();
    }
  }

  /// In an order that is the same in all processes, and with no more of them in memory.
  void make_room_for_one() {
    if (under_way_.size() == kUnderWay) {
      std::visit([](auto& gradients) { gradients.finish(); }, under_way_.front());
      under_way_.pop_front();
    }
    if (!under_way_.empty()) std::visit([](auto& gradients) { gradients.advance(); }, under_way_.back());
  }

  void hand_in_next() {
    const OneBucket& bucket = buckets_[next_];
    for (const std::size_t i : bucket.members) has_gradient_[i] = parameters_[i].grad().defined() ? 1 : 0;
    if (options_.leaves == DataParallelOptions::Leaves::Shards) {
      for (const Strip& strip : bucket.strips) {
        make_room_for_one();
        under_way_.emplace_back(std::in_place_type<BucketShards>, *group_, of(bucket), strip, bucket.owned, options_,
                                purpose_);
      }
    } else {
      make_room_for_one();
      under_way_.emplace_back(std::in_place_type<BucketGradients>, *group_, of(bucket), options_, purpose_);
    }
    ++next_;
    if (purpose_ == Reduction::Purpose::Sums) ++counts_.buckets;
  }

  void end_pass(int task) {
    const std::lock_guard lock(mutex_);
    if (task == task_) finish();
  }

  void finish() {
    while (next_ < buckets_.size()) hand_in_next();
    const memory::TagScope tag(memory::Tag::Workspace);
    const at::Tensor any = at::zeros({static_cast<std::int64_t>(has_gradient_.size())}, at::kByte);
    std::ranges::copy(has_gradient_, any.mutable_data_ptr<std::uint8_t>());
    ProcessGroup::Begun agreed;
    if (purpose_ == Reduction::Purpose::Sums && any.numel() > 0) agreed = group_->begin(AllReduce{any, Reduce::Max});
    for (auto& of_bucket : under_way_) std::visit([](auto& gradients) { gradients.finish(); }, of_bucket);
    under_way_.clear();
    agreed.wait();
    forget_where_none(any.const_data_ptr<std::uint8_t>());
    task_ = kNoTask;
    if (purpose_ == Reduction::Purpose::Sums) ++counts_.passes;
  }

  /// What no process has a gradient for has none, and not one of zeros.
  void forget_where_none(const std::uint8_t* any) {
    std::unordered_set<const void*> none;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (any[i] != 0) continue;
      parameters_[i].mutable_grad() = at::Tensor();
      none.insert(parameters_[i].unsafeGetTensorImpl());
    }
    for (OneBucket& bucket : buckets_) {
      for (Owned& owned : bucket.owned) {
        if (!owned.had_gradient && none.contains(parameters_[owned.piece.parameter].unsafeGetTensorImpl()))
          owned.tensor.mutable_grad() = at::Tensor();
      }
    }
  }

  static constexpr int kNoTask = -1;

  std::vector<at::Tensor> parameters_;
  std::vector<std::size_t> given_as_;  // by parameter: its index in the list that was given
  std::shared_ptr<ProcessGroup> group_;
  DataParallelOptions options_;
  std::vector<OneBucket> buckets_;
  std::vector<Shard> shards_;
  std::vector<std::size_t> bucket_of_;  // by parameter
  std::vector<std::pair<decltype(torch::autograd::Edge::function), std::uintptr_t>> hooks_;
  std::mutex mutex_;
  int accumulating_ = 0;
  // Of the pass that goes on:
  int task_ = kNoTask;
  std::weak_ptr<Pass> pass_;
  Reduction::Purpose purpose_ = Reduction::Purpose::Sums;
  std::size_t next_ = 0;                    // bucket to be handed in
  std::vector<std::size_t> arrived_;        // by bucket
  std::vector<std::uint8_t> has_gradient_;  // by parameter, in this process
  std::deque<std::variant<BucketGradients, BucketShards>> under_way_;
  Counts counts_;
};

DataParallel::DataParallel(const std::vector<at::Tensor>& parameters, std::shared_ptr<ProcessGroup> group,
                           const DataParallelOptions& options) {
  passes_ = std::make_shared<Passes>(parameters, std::move(group), options);
  passes_->hook_up();
}
DataParallel::~DataParallel() { passes_->unhook(); }

const DataParallel::Counts& DataParallel::counts() const noexcept { return passes_->counts(); }
Bytes DataParallel::bytes_of_shards(int member) const { return passes_->bytes_of_shards(member); }
std::size_t DataParallel::buckets() const noexcept { return passes_->buckets(); }

const std::vector<Shard>& DataParallel::shards() const noexcept { return passes_->shards(); }
void DataParallel::gather(Reduction::Purpose purpose) { passes_->gather(purpose); }

void DataParallel::hand_in(Reduction::Purpose purpose) { passes_->hand_in(purpose); }

DataParallel::Accumulating::Accumulating(DataParallel& of) : of_(of) { of_.passes_->accumulate(1); }
DataParallel::Accumulating::~Accumulating() { of_.passes_->accumulate(-1); }

void copy_from_first(ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor dense = tensor.detach().contiguous();
    group.run(Broadcast{dense, 0});
    if (!dense.is_alias_of(tensor)) tensor.detach().copy_(dense);
  }
}

}  // namespace snug::parallel
