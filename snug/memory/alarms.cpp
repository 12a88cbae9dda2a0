#include "snug/memory/alarms.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {

constexpr double kAgain = 1.25;

}  // namespace

std::string_view name_of(Alarm::Kind kind) {
  switch (kind) {
    case Alarm::Kind::Growth:
      return "growth";
    case Alarm::Kind::Headroom:
      return "headroom";
    case Alarm::Kind::FallingScale:
      return "falling_scale";
  }
  return "";
}

Alarms::Alarms(const AlarmRules& rules)
    : rules_(rules),
      allocated_{.of = "what tensors take",
                 .advice = "something keeps tensors of earlier steps, such as a list of losses"},
      others_{
          .of = "the process's memory beyond what tensors have",
          .advice = "something that is no tensor is kept at every step, or a large tensor is filled piece by piece"} {
  if (rules.growth_steps < 0)
    throw UsageError(fmt::format("monitor: growth over {} steps; give 0 or more", rules.growth_steps));
  constexpr std::int64_t kQuarters = 4;
  if (rules.growth_steps > 0) rules_.growth_steps = std::max(rules.growth_steps, kQuarters);
  if (rules.growth_bytes < 0)
    throw UsageError(fmt::format("monitor: growth of {} bytes; give 0 or more", rules.growth_bytes));
  if (!(rules.headroom >= 0 && rules.headroom < 1)) {
    throw UsageError(fmt::format("monitor: a headroom of {}; it is a share of the device's memory, from 0 to below 1",
                                 rules.headroom));
  }
  if (rules.falling_scale < 0)
    throw UsageError(fmt::format("monitor: {} falls of the loss scale; give 0 or more", rules.falling_scale));
}

std::vector<Alarm> Alarms::after(const StepEnd& end) {
  std::vector<Alarm> alarms;
  const auto add = [&](std::optional<Alarm> alarm) {
    if (alarm) alarms.push_back(*std::move(alarm));
  };
  add(growth(allocated_, end.step, end.memory.allocated));
  if (end.memory.anonymous > 0) {
    const ResidentShares& shares = end.memory.shares;
    add(growth(others_, end.step, end.memory.anonymous - shares.tensors - shares.cached));
  }
  add(headroom(end));
  add(falling_scale(end));
  return alarms;
}

bool Alarms::grows(const std::deque<Bytes>& values) const {
  // What is there at the least: batches may differ in size.
  const auto quarter = [&](std::size_t i) {
    return values.begin() + static_cast<std::ptrdiff_t>(i * values.size() / 4);
  };
  const auto least = [&](std::size_t i) { return *std::min_element(quarter(i), quarter(i + 1)); };
  for (std::size_t i = 1; i < 4; ++i) {
    if (least(i) <= least(i - 1)) return false;
  }
  return values.back() - values.front() >= rules_.growth_bytes;
}

std::optional<Alarm> Alarms::growth(Course& course, std::int64_t step, Bytes value) const {
  std::deque<Bytes>& values = course.values;
  const auto most = static_cast<std::size_t>(rules_.growth_steps);
  if (most == 0) return std::nullopt;
  values.push_back(value);
  if (values.size() <= most) return std::nullopt;
  values.pop_front();
  if (!grows(values)) {
    course.told = false;
    return std::nullopt;
  }
  if (std::exchange(course.told, true)) return std::nullopt;
  return Alarm{Alarm::Kind::Growth,
               fmt::format("step {}: {} grew by {} over {} steps, all the while: {}", step, course.of,
                           format_bytes(values.back() - values.front()), most - 1, course.advice)};
}

std::optional<Alarm> Alarms::headroom(const StepEnd& end) {
  const MachineMemory& device = end.memory.device;
  const double least = rules_.headroom * static_cast<double>(device.total);
  const auto available = static_cast<double>(device.available);
  // Not again for every swing around it.
  if (available >= kAgain * least) low_ = false;
  if (available >= least) return std::nullopt;
  if (std::exchange(low_, true)) return std::nullopt;
  return Alarm{Alarm::Kind::Headroom,
               fmt::format("step {}: {} of the device's {} are free, less than {:g} %: this process has {}, so a "
                           "smaller budget, or fewer processes beside it, leave room",
                           end.step, format_bytes(device.available), format_bytes(device.total), 100 * rules_.headroom,
                           format_bytes(std::max(end.memory.mapped, end.memory.resident)))};
}

std::optional<Alarm> Alarms::falling_scale(const StepEnd& end) {
  if (!end.loss_scale || rules_.falling_scale == 0) return std::nullopt;
  const double scale = *end.loss_scale;
  const bool fell = scale_ && scale < *scale_;
  scale_ = scale;
  if (!fell) {
    falls_ = 0;
    fell_ = false;
    return std::nullopt;
  }
  ++falls_;
  // Below one, scaling makes gradients smaller, not larger.
  if ((falls_ < rules_.falling_scale && scale >= 1) || std::exchange(fell_, true)) return std::nullopt;
  return Alarm{Alarm::Kind::FallingScale,
               fmt::format("step {}: the loss scale keeps falling, to {:g} after {} overflows in a row: the loss "
                           "itself, or an operator on the way back, exceeds what fp16 holds (65504) whatever the scale "
                           "is; bf16 has the range of fp32, and a lower learning rate often helps",
                           end.step, scale, falls_)};
}

}  // namespace snug::memory
