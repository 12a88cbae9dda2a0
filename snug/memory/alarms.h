#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/memory_sample.h"

namespace snug::memory {

/// What is worth an alarm. 0 turns a rule off.
struct AlarmRules {
  /// Steps over which memory must not have grown all the while: what is there at the least, from each quarter of them
  /// to the next, so that what comes once, as an optimizer's state, is none. Fewer than 4 count as 4.
  std::int64_t growth_steps = 40;
  Bytes growth_bytes = 1_MiB;       ///< and by at least so much in all
  double headroom = 0.05;           ///< the share of the device's memory that must stay free
  std::int64_t falling_scale = 15;  ///< times in a row that a loss scale may fall: from 65,536 fifteen lead to two
};

/// A step that has ended.
struct StepEnd {
  std::int64_t step = 0;
  MemorySample memory;
  std::optional<double> loss_scale = {};  ///< for the next step, where losses are scaled
};

struct Alarm {
  enum class Kind : std::uint8_t { Growth, Headroom, FallingScale };
  Kind kind;
  std::string message;  ///< one line: what is seen, and what to do
};
std::string_view name_of(Alarm::Kind kind);

/// Looks at one step after the other and says what is wrong, once for as long as it lasts. One thread.
class Alarms {
 public:
  /// Throws UsageError for rules that cannot be.
  explicit Alarms(const AlarmRules& rules);
  std::vector<Alarm> after(const StepEnd& end);

 private:
  /// What grows, or does not, over the steps of a window.
  struct Course {
    std::string_view of, advice;
    std::deque<Bytes> values{};
    bool told = false;
  };
  [[nodiscard]] bool grows(const std::deque<Bytes>& values) const;
  std::optional<Alarm> growth(Course& course, std::int64_t step, Bytes value) const;
  std::optional<Alarm> headroom(const StepEnd& end);
  std::optional<Alarm> falling_scale(const StepEnd& end);

  AlarmRules rules_;
  Course allocated_, others_;
  bool low_ = false;   // it was told that little is free
  bool fell_ = false;  // and that the scale falls
  std::int64_t falls_ = 0;
  std::optional<double> scale_;
};

}  // namespace snug::memory
