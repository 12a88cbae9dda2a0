#pragma once

#include <c10/core/Storage.h>

#include <unordered_map>

#include "snug/base/bytes.h"
#include "snug/memory/compressed.h"
#include "snug/plan/run/images.h"
#include "snug/plan/step/encoding.h"
#include "snug/record/moved_contents.h"
#include "snug/record/seen_version.h"
#include "snug/record/tape_mutex.h"
#include "snug/record/tape_observer.h"

namespace snug::record {

/// The images of a tape's values and what is in them (see plan::Images): the contents that backward gets in place of a
/// value's, from a lossy codec. They are no values: no replay reads them.
///
/// Synchronized by the tape's mutex, which it lends while it encodes and decodes.
class ImageStore {
 public:
  ImageStore(TapeMutex& mutex, const TapeObservers& observers) : mutex_(mutex), observers_(observers) {}

  [[nodiscard]] bool has(plan::ValueId value) const { return book_.has(value); }
  /// Makes one of what is in the storage. Throws Error, and there is none, when that cannot be written so, or there is
  /// no memory for it.
  void add(plan::ValueId value, const c10::Storage& storage, Bytes bytes, const plan::Encoding& encoding);
  /// How it is encoded. The rest is about values that have one.
  [[nodiscard]] const plan::Encoding& encoding(plan::ValueId value) const {
    return images_.at(value).contents.encoding;
  }

  /// A saved tensor stands for it.
  void pack(plan::ValueId value) { book_.pack(value); }
  /// Its contents, decoded. The caller keeps them.
  [[nodiscard]] c10::Storage contents(plan::ValueId value);
  [[nodiscard]] bool decoded(plan::ValueId value) const { return book_.decoded(value); }
  /// Counts the writes of a tensor over contents() that is about to be handed to a node: what one has written to is
  /// decoded again for the next.
  void count_writes_of(plan::ValueId value, const at::Tensor& tensor);
  /// A saved tensor was unpacked for the first time in this backward pass.
  void consume(plan::ValueId value);
  void release(plan::ValueId value, plan::Unpacked unpacked);
  void begin_pass() { book_.begin_pass(); }
  void end_pass();
  /// The recording is over: images that nothing stands for go.
  void settle();

  /// Bytes of values that images were made of.
  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

 private:
  struct Image {
    MovedContents::InFewerBytes contents;
    c10::Storage decoded;  // where the book says so
    SeenVersion writes;    // to that
  };

  TapeMutex& mutex_;
  const TapeObservers& observers_;
  plan::Images book_;
  std::unordered_map<plan::ValueId, Image> images_;
  Bytes bytes_ = 0;
};

}  // namespace snug::record
