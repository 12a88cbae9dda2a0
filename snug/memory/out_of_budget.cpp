#include "snug/memory/out_of_budget.h"

#include <fmt/format.h>

#include "snug/base/front_end.h"
#include "snug/memory/swallowed_refusal.h"

namespace snug {
namespace memory {
namespace {

thread_local const std::string* t_operation = nullptr;

std::optional<OutOfBudget::Details> details_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const OutOfBudget& refusal) {
    return refusal.details();
  } catch (...) {
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::pair<Bytes, Tag>> largest_of(std::vector<std::pair<Bytes, Tag>> blocks) {
  constexpr std::ptrdiff_t kNamed = 5;
  const auto end = blocks.begin() + std::min(kNamed, std::ssize(blocks));
  std::partial_sort(blocks.begin(), end, blocks.end(), std::greater<>());
  blocks.erase(end, blocks.end());
  return blocks;
}

void refuse(OutOfBudget::Details details) {
  note_refusal(details);
  try {
    throw OutOfBudget(std::move(details));
  } catch (const OutOfBudget&) {
    throw_into_libtorch();
  }
}

std::optional<OutOfBudget::Details> refusal_in(const std::exception_ptr& error) {
  auto details = details_of(error);
  return details ? details : details_of(front_end().untranslate(error));
}

OperationScope::OperationScope(const std::string* name) noexcept : previous_(t_operation) { t_operation = name; }
OperationScope::~OperationScope() { t_operation = previous_; }

std::string current_operation() { return t_operation ? *t_operation : std::string(); }

std::string describe(const ByTag& bytes) {
  std::string text;
  for (std::size_t i = 0; i < kTags; ++i) {
    if (bytes[i] == 0) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", kTagNames[i], format_bytes(bytes[i]));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace memory

namespace {

std::string message(const OutOfBudget::Details& d) {
  std::string largest;
  for (const auto& [bytes, tag] : d.largest) {
    if (!largest.empty()) largest += ", ";
    largest += fmt::format("{} ({})", format_bytes(bytes), memory::tag_name(tag));
  }
  const std::string asked = fmt::format("{} asked for {}{}", d.operation.empty() ? "an allocation" : d.operation,
                                        format_bytes(d.requested), d.device.is_cpu() ? "" : " on " + d.device.str());
  const std::string taken = fmt::format("{} ({})", format_bytes(d.stats.allocated), memory::describe(d.stats.by_tag));
  const std::string blocks = "largest blocks: " + (largest.empty() ? "none" : largest);
  const bool too_much = d.machine && d.requested > *d.machine;
  if (!d.stats.limit || too_much) {
    return fmt::format("out of memory: {} while {} is taken, {}; {}; use a smaller batch{}", asked, taken,
                       too_much
                           ? fmt::format("and this process can have {} at most, with swap", format_bytes(*d.machine))
                           : "and the system refuses more",
                       blocks, too_much ? "" : ", or raise what limits the process (ulimit -v)");
  }
  const char* const why =
      d.in_step ? "and nothing is left to evict" : "outside of any step of a session, where nothing can be evicted";
  const char* const cure =
      d.in_step ? "" : "if this belongs to no session's training, end the session or lift the limit for it; else ";
  return fmt::format(
      "out of budget: {} while {} of the {} limit is taken ({}) {}; {}; {}raise the budget or use a smaller batch",
      asked, format_bytes(d.stats.allocated), format_bytes(*d.stats.limit), memory::describe(d.stats.by_tag), why,
      blocks, cure);
}

}  // namespace

OutOfBudget::OutOfBudget(Details details) : Error(message(details)), details_(std::move(details)) {}

}  // namespace snug
