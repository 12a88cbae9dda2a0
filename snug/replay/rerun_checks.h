#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "snug/record/tape_observer.h"
#include "snug/replay/rerun.h"
#include "snug/replay/saved_place.h"

namespace snug::replay {

/// Holds what a function saves when it runs again against what it saved in forward, as far as DeterminismCheck says.
/// Where it did not compute the same both times a check throws Error, which with Rerun::debug tells where the operators
/// of the two runs part. Not synchronized.
class RerunChecks {
 public:
  explicit RerunChecks(const Rerun& options) : determinism_(options.determinism_check), debug_(options.debug) {}

  /// Which of the saved tensors it is, for messages.
  struct Position {
    std::size_t index = 0;
    std::size_t count = 0;  ///< that the forward pass saved
  };

  /// Where the operators of a run are to be noted; nullptr without Rerun::debug.
  std::vector<std::string>* log(record::Run run);
  /// Another rerun begins.
  void begin_rerun() { rerun_operators_.clear(); }

  /// Whether contents are compared, by the next two. They count when they are final: see RerunFrame::before_operator.
  [[nodiscard]] bool compares_contents() const noexcept { return determinism_ == DeterminismCheck::Values; }
  void remember_contents(SavedPlace& place, const at::Tensor& forward) const;
  void check_contents(const SavedPlace& place, const at::Tensor& rerun, Position position) const;

  void check_metadata(const SavedLook& forward, const SavedLook& rerun, Position position) const;
  /// Throws where both runs saved the same memory, and it was modified in place between them. `tensor`: the rerun's.
  void check_unmodified(const SavedLook& forward, const SavedLook& rerun, const at::Tensor& tensor,
                        Position position) const;

  /// After a whole rerun: it has saved as many tensors as the forward pass.
  void check_count(std::size_t forward, std::size_t rerun) const;
  [[noreturn]] void refuse_more_than(std::size_t forward) const;
  /// The rerun is over, and has not saved what backward asks for.
  [[noreturn]] void refuse_missing() const;

 private:
  /// The end of a message.
  [[nodiscard]] std::string where_they_part() const;

  DeterminismCheck determinism_;
  bool debug_;
  std::vector<std::string> forward_operators_, rerun_operators_;  // with debug
};

}  // namespace snug::replay
