#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/contents_room.h"
#include "snug/memory/tiers.h"
#include "snug/plan/run/window_book.h"
#include "snug/plan/step/move_cost.h"
#include "snug/record/recording.h"
#include "snug/replay/stream_window.h"

namespace snug {

struct StreamOptions {
  /// Where the tensors are used; none: where they are. Those that are elsewhere become tensors of that device.
  std::optional<c10::Device> device = {};
  /// Memory of the host outside of all budgets, page-locked beside an accelerator, and room on a disk, in a file
  /// without a name in the folder that TMPDIR names. None: of an accelerator all goes to the host, of the CPU to the
  /// disk. Both: what the host has no room for goes to the disk.
  std::optional<Bytes> host_budget = {}, disk_budget = {};
  Bytes min_bytes = 64_KiB;  ///< of a tensor; smaller ones stay where they are
};

/// Weights, and what optimizers keep of them, that are larger than a device's memory: their contents live in the host's
/// memory or on a disk, and are in a window of the device's memory while operators use them. What runs is bit for bit
/// what would run without. As ZeRO-Infinity moves them (arXiv 2104.07857), below autograd, for any model.
///
/// Operators find the contents that run in the thread that has made this, in backward passes that it starts and in
/// their replays. Whatever else takes a tensor's address (`data_ptr`, `torch::save` of a CPU's tensor) finds none, and
/// has to bring_back() first, or to use a memory::ContentsThere. Must go in that thread. Copies of a tensor that share
/// its memory, and views of it, come and go with it. What is made by `zeros_like` of one, and not in a forward or
/// backward pass, is streamed as well: so optimizers make their moments, in their first step.
class StreamedTensors {
 public:
  /// Throws UsageError for a budget that is not positive.
  explicit StreamedTensors(StreamOptions options = {});
  /// In these tiers, which have the budgets.
  StreamedTensors(StreamOptions options, std::shared_ptr<memory::Tiers> tiers);
  /// As bring_back(); where there is no memory for all, the contents of the others are gone. Of a model that is larger
  /// than the machine's memory, let the model go first.
  ~StreamedTensors();
  StreamedTensors(const StreamedTensors&) = delete;
  StreamedTensors& operator=(const StreamedTensors&) = delete;

  /// The contents of these leave the device's memory. Not of what is no plain tensor, has less than min_bytes, or has
  /// left already. Throws Error where no tier has room, and UsageError for tensors of several devices where the options
  /// name none: those that have left by then have left.
  void add(const std::vector<at::Tensor>& tensors);
  /// The same of one, whatever its size, for that room, which has as many bytes, and elements in the order in which
  /// they are in memory. It must be alone in its storage, else std::logic_error is thrown. In all that follows there is
  /// no difference.
  void add_with_room(const at::Tensor& tensor, std::unique_ptr<memory::ContentsRoom> room);
  /// Rooms have other contents than they had.
  void forget_copies();
  /// What it takes to fetch contents from rooms that were given, for who chooses a window; none: as from tiers.
  void set_cost(const plan::MoveCost& cost) { cost_ = cost; }
  [[nodiscard]] const std::optional<plan::MoveCost>& cost() const noexcept { return cost_; }
  /// Where the gradient of one of them has been accumulated: it leaves, too. A session, and a recording, say so
  /// themselves, behind whoever uses gradients where they arrive (replay::GradientHooks). Does nothing where it is a
  /// part of something larger, or somebody still has the parameter's last one.
  void take_gradient(const at::Tensor& parameter);
  /// All are in the device's memory again, and none of them is streamed. Throws where there is not enough.
  void bring_back();

  /// The window from here on; see replay::StreamWindow::open. Without one each operator's tensors take memory as long
  /// as it runs.
  void open(plan::Window window);
  /// The same for a recording, until the next open(), or reopen(), which opens what was before.
  void try_out(plan::Window window);
  void reopen();
  [[nodiscard]] plan::Window window_to_be() const noexcept { return window_to_be_; }
  /// A step of that kind begins, which uses them in the order in which the last one of the kind did. A session says so
  /// itself.
  void next_step(replay::StepKind kind = replay::StepKind::First);

  [[nodiscard]] replay::StreamWindow::Totals totals() const;
  [[nodiscard]] const std::shared_ptr<memory::Tiers>& tiers() const noexcept { return tiers_; }
  /// Nullptr as long as nothing has left.
  [[nodiscard]] const std::shared_ptr<replay::StreamWindow>& window() const noexcept { return window_; }

 private:
  struct Gradients {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> of;  // the parameter
    std::int32_t which;
    Bytes bytes;
  };
  void forget_gone();
  void begin_on(c10::Device device);

  StreamOptions options_;
  std::shared_ptr<memory::Tiers> tiers_;
  std::shared_ptr<replay::StreamWindow> window_;
  std::optional<record::OperatorGate> gate_;
  std::unordered_map<const c10::TensorImpl*, Gradients> gradients_;  // by parameter
  plan::Window window_to_be_;                                        // as it was opened last
  std::optional<plan::MoveCost> cost_;
};

namespace replay {

/// Where the scope is left by an exception the window is what it was before it was tried out.
class WindowAfterFailure {
 public:
  /// Nullptr: there is none.
  explicit WindowAfterFailure(StreamedTensors* streamed)
      : streamed_(streamed),
        before_(streamed != nullptr ? streamed->window_to_be() : plan::Window()),
        exceptions_(std::uncaught_exceptions()) {}
  ~WindowAfterFailure();
  WindowAfterFailure(const WindowAfterFailure&) = delete;
  WindowAfterFailure& operator=(const WindowAfterFailure&) = delete;

 private:
  StreamedTensors* streamed_;
  plan::Window before_;
  int exceptions_;
};

}  // namespace replay

}  // namespace snug
