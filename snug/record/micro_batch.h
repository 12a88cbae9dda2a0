#pragma once

namespace snug {

/// Around the forward pass of one micro-batch, its loss among it, for step functions that go backward with several, one
/// by one, as pipelines do whose passes run by turns. Sessions and recordings see each as a forward pass of its own,
/// whose backward pass may come at any time after that, and plan for as many as are in flight at once: have gone
/// forward, and not backward. What runs in between is not recorded. parallel::Pipeline does so itself.
/// Does nothing outside of steps, and on autograd's threads, which run backward passes of accelerators. Does not nest:
/// the next one ends this one, as a backward pass does. Throws UsageError inside of a backward pass.
class MicroBatch {
 public:
  /// `stage`: which part of a model it goes through, where a process has several, as stages of a pipeline may begin
  /// alike.
  explicit MicroBatch(int stage = 0);
  ~MicroBatch();
  MicroBatch(const MicroBatch&) = delete;
  MicroBatch& operator=(const MicroBatch&) = delete;

 private:
  int exceptions_;
};

namespace record {

/// What runs a step function, and is told of its micro-batches.
class MicroBatchListener {
 public:
  MicroBatchListener() = default;
  MicroBatchListener(const MicroBatchListener&) = delete;
  MicroBatchListener& operator=(const MicroBatchListener&) = delete;
  virtual ~MicroBatchListener() = default;
  virtual void micro_batch_begins(int stage) = 0;
  virtual void micro_batch_ends() noexcept = 0;
  virtual void micro_batch_fails() noexcept = 0;  ///< its forward pass is none, and goes

  /// That of this thread, or nullptr.
  static MicroBatchListener* here() noexcept;
  /// Another from now on, or none. Returns the one until now.
  static MicroBatchListener* exchange(MicroBatchListener* listener) noexcept;
};

}  // namespace record
}  // namespace snug
