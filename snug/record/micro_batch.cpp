#include "snug/record/micro_batch.h"

#include <exception>
#include <utility>

namespace snug {
namespace {

thread_local record::MicroBatchListener* t_listener = nullptr;

}  // namespace

record::MicroBatchListener* record::MicroBatchListener::here() noexcept { return t_listener; }

record::MicroBatchListener* record::MicroBatchListener::exchange(MicroBatchListener* listener) noexcept {
  return std::exchange(t_listener, listener);
}

MicroBatch::MicroBatch(int stage) : exceptions_(std::uncaught_exceptions()) {
  if (t_listener != nullptr) t_listener->micro_batch_begins(stage);
}

MicroBatch::~MicroBatch() {
  if (t_listener == nullptr) return;
  std::uncaught_exceptions() == exceptions_ ? t_listener->micro_batch_ends() : t_listener->micro_batch_fails();
}

}  // namespace snug
