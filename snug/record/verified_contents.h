#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "snug/plan/step/ids.h"
#include "snug/record/call_log.h"
#include "snug/record/compared_replays.h"
#include "snug/record/remembered.h"
#include "snug/record/value_store.h"
#include "snug/record/verify_replay.h"

namespace snug::record {

/// Remembers the contents of what is dropped, as far as saved tensors show them, and compares them when they are
/// recomputed. Does nothing until it is told how. Synchronized by the tape's mutex.
class VerifiedContents {
 public:
  VerifiedContents(const CallLog& calls, const ValueStore& values) : calls_(calls), values_(values) {}

  void verify(VerifyReplay how) noexcept { how_ = how; }
  /// Compares once what is not in `compared`. `place`: a hash of the place in the program, where several share that.
  void verify_once(std::shared_ptr<ComparedReplays> compared, std::uint64_t place) noexcept {
    how_ = VerifyReplay::Once;
    compared_ = std::move(compared);
    place_ = place;
  }

  /// A saved tensor shows the value in this way. Bytes that no saved tensor shows are not compared: an operator need
  /// not have written them.
  void note(plan::ValueId value, const View& view);
  /// The value is about to be dropped, which is in this storage.
  void remember(plan::ValueId value, const c10::Storage& storage);
  /// Autograd saves `view` of a value in `storage` that backward will recompute or fetch. Remembers the contents, or
  /// compares them with those at an earlier save of the same view. Throws Error if they differ: something wrote in
  /// between without a new version. Only if reads_when_saved().
  void saved(plan::ValueId value, const View& view, const c10::Storage& storage);
  /// Whether saved() reads the contents.
  [[nodiscard]] bool reads_when_saved(plan::ValueId value) const { return remembers(value) || compares(value); }
  /// Whether remember() does.
  [[nodiscard]] bool remembers(plan::ValueId value) const;
  /// Whether check() reads the contents.
  [[nodiscard]] bool compares(plan::ValueId value) const;
  /// It is there again. Throws Error when it has other bits, naming the operator, its module and the place.
  void check(plan::ValueId value, const c10::Storage& made);

  /// How many values have been compared.
  [[nodiscard]] std::int64_t compared() const noexcept { return count_; }
  /// Whether one had other bits.
  [[nodiscard]] bool differed() const noexcept { return differed_; }

 private:
  struct NotDropped {};
  struct Compared {};  // in this step or, with Once, an earlier one
  struct Shown {
    View view;
    std::uint64_t key = 0;  // of Once
    std::variant<NotDropped, Remembered, Compared> contents;
  };
  /// The views of one value that saved tensors show, each once.
  struct Verified {
    std::uint64_t chain = 0;  // of the operators up to the first of them
    std::vector<Shown> shown;
  };
  template <class Contents>
  [[nodiscard]] bool any(plan::ValueId value) const;
  [[nodiscard]] std::uint64_t key_of(plan::ValueId value, std::uint64_t chain, const View& view) const;
  [[nodiscard]] std::string cause_of(plan::ValueId value) const;

  const CallLog& calls_;
  const ValueStore& values_;
  VerifyReplay how_ = VerifyReplay::Off;
  std::shared_ptr<ComparedReplays> compared_;
  std::uint64_t place_ = 0;
  std::int64_t count_ = 0;
  bool differed_ = false;
  ska::flat_hash_map<plan::ValueId, Verified> verified_;
};

}  // namespace snug::record
