#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "snug/base/errors.h"

namespace snug {

/// What one process has to say about going on as it is.
enum class Vote : std::uint8_t {
  No,
  Yes,
  Failed  ///< it has thrown something that the others know nothing of, and votes on this no more
};

/// How processes that train one model together, and wait for each other in collectives, decide what changes what runs
/// in each of them: to record a step again, to plan it again, to refuse it, to give up. Each of them asks for every
/// decision, in the same order. Called by the thread that records or runs a step, perhaps while a first operator waits;
/// operators that it runs are recorded by nobody.
class Agreement {
 public:
  Agreement() = default;
  virtual ~Agreement() = default;
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  /// What every process of the group says, `mine` among them, in an order that is the same in all: an all-gather of a
  /// byte. Waits for all of them. What it throws ends what this process was doing; it is not asked again for that.
  virtual std::vector<Vote> votes(Vote mine) = 0;

  // What makes plans the same in all of them. Without it each has plans of its own.
  /// The text that the first process of the group has.
  virtual std::string from_first(std::string mine) { return mine; }
  /// Whether that is this one; otherwise its own text counts for nothing.
  [[nodiscard]] virtual bool is_first() const { return true; }
  /// Whether all processes that do collectives inside of steps of this one are among those of the group: then their
  /// plans may have all of them do some of these again.
  [[nodiscard]] virtual bool covers_collectives() const { return false; }
  /// Whether there are such, and who leaves a step in its midst may be waited for: end_collectives().
  [[nodiscard]] virtual bool has_collectives() const { return false; }
  /// This process has left a step in its midst: who waits for it in a collective inside of the step waits no more.
  virtual void end_collectives() noexcept {}
  /// Whether others are known to record other steps, without being asked: in a rehearsal, where nobody can be.
  [[nodiscard]] virtual bool is_unlike_others() const { return false; }
  /// Each number becomes the largest that one of them has. As many in each.
  virtual void largest(std::span<double> /*numbers*/) {}
};

/// Ends what this process does together with others, as one of them has failed and says so: on what comes of that they
/// have still to vote.
class EndedByAnother : public Error {
 public:
  using Error::Error;
};

/// Of a process that trains alone: its own word.
const std::shared_ptr<Agreement>& alone();

}  // namespace snug
