#include "snug/plan/search/chain_program.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>

#include "snug/plan/run/presets.h"
#include "snug/plan/search/front.h"

namespace snug::plan {
namespace {

constexpr float kNever = std::numeric_limits<float>::infinity();
constexpr std::size_t kFewestRooms = 128;
constexpr std::size_t kTableSize = 6'000'000;  // entries: what keeps a program under a second

class Program {
 public:
  Program(const StepGraph& graph, const Chain& chain, Bytes least, Bytes most, std::size_t most_rooms)
      : graph_(graph), chain_(chain), count_(chain.pieces.size()), least_(least) {
    choose_rooms(most, most_rooms);
    replay_base_.resize(count_ + 1, 0);
    for (std::size_t p = 0; p < count_; ++p) replay_base_[p + 1] = chain.pieces[p].backward_base;
    solve();
  }

  [[nodiscard]] std::size_t rooms() const { return rooms_; }
  [[nodiscard]] bool possible(std::size_t room) const { return cost(0, count_, room) < kNever; }

  /// The decisions for the whole chain in a room, as a plan's keeps and segments.
  void build(std::size_t room, MemoryPlan& plan) const { build(0, count_, room, /*first_pass=*/true, plan); }

 private:
  using Decision = std::int16_t;  // an option, or -1 - the cut before which nothing is kept

  /// As many rooms as the table can have; exactly one for each possible sum of sizes where that is no more.
  void choose_rooms(Bytes most, std::size_t most_rooms) {
    Bytes unit = 0;
    const auto divides = [&](Bytes bytes) { unit = std::gcd(unit, bytes); };
    for (const Piece& piece : chain_.pieces) {
      for (const PieceOption& o : piece.options) divides(o.kept);
      for (const PieceOption& o : piece.in_replay) divides(o.kept);
    }
    for (const auto& row : chain_.leaving) {
      for (const Bytes bytes : row) divides(bytes);
    }
    const Bytes range = std::max<Bytes>(most - least_, 0);
    const std::size_t pairs = count_ * (count_ + 1) / 2;
    const std::size_t affordable =
        std::min(most_rooms, std::max(kTableSize / std::max<std::size_t>(pairs, 1), kFewestRooms));
    if (unit == 0 || range / unit > static_cast<Bytes>(affordable)) {
      unit = std::max<Bytes>(1, (range + static_cast<Bytes>(affordable) - 1) / static_cast<Bytes>(affordable));
    }
    unit_ = unit;
    rooms_ = static_cast<std::size_t>(range / unit_) + 1;
    // Budgets count down from the largest, so that the largest is exact.
    least_ = most - static_cast<Bytes>(rooms_ - 1) * unit_;
  }
  /// The room that is left when `bytes` go, rounded down; negative when there is none.
  [[nodiscard]] std::ptrdiff_t after(std::size_t room, Bytes bytes) const {
    // Never more than there was, whatever events a file has.
    const std::ptrdiff_t units = static_cast<std::ptrdiff_t>((std::max<Bytes>(bytes, 0) + unit_ - 1) / unit_);
    return static_cast<std::ptrdiff_t>(room) - units;
  }
  /// The smallest room with so many bytes; rooms() when none has.
  [[nodiscard]] std::size_t room_for(Bytes bytes) const {
    const Bytes over = bytes - least_;
    return over <= 0 ? 0 : std::min(static_cast<std::size_t>((over + unit_ - 1) / unit_), rooms_);
  }

  // Ranges of pieces [first, last), last > first.
  [[nodiscard]] std::size_t index(std::size_t first, std::size_t last) const {
    return (first * count_ - first * (first + 1) / 2 + last - 1) * rooms_;
  }
  [[nodiscard]] float cost(std::size_t first, std::size_t last, std::size_t room) const {
    return cost_[index(first, last) + room];
  }

  [[nodiscard]] const std::vector<PieceOption>& options_of(std::size_t piece, bool first_pass) const {
    return first_pass ? chain_.pieces[piece].options : chain_.pieces[piece].in_replay;
  }

  /// Highest memory beside what is kept before `first`, while pieces up to `cut` run and keep only what leaves.
  [[nodiscard]] Bytes bare_need(std::size_t first, std::size_t cut, bool first_pass, std::size_t last) const {
    Bytes need = 0;
    for (std::size_t p = first; p < cut; ++p) {
      const Bytes carried = p > first ? chain_.leaving[first][p] : 0;
      need = std::max(need, carried + forward_need(chain_.pieces[p].nothing_kept, first_pass, last));
    }
    return need;
  }
  /// A replay of pieces before `last` runs when backward has left `last`.
  [[nodiscard]] Bytes forward_need(const PieceOption& o, bool first_pass, std::size_t last) const {
    return first_pass ? o.forward_need : replay_base_[last] + o.forward_bytes;
  }

  void solve() {
    cost_.assign(count_ * (count_ + 1) / 2 * rooms_ + rooms_, kNever);
    decision_.assign(cost_.size(), 0);
    std::vector<double> seconds_before(count_ + 1, 0);
    for (std::size_t p = 0; p < count_; ++p) seconds_before[p + 1] = seconds_before[p] + chain_.pieces[p].seconds;
    for (std::size_t length = 1; length <= count_; ++length) {
      for (std::size_t first = 0; first + length <= count_; ++first) {
        const std::size_t last = first + length;
        const bool first_pass = last == count_;
        const std::size_t here = index(first, last);
        const auto offer = [&](std::size_t room, double seconds, Decision decision) {
          if (static_cast<float>(seconds) >= cost_[here + room]) return;
          cost_[here + room] = static_cast<float>(seconds);
          decision_[here + room] = decision;
        };
        const auto& options = options_of(first, first_pass);
        for (std::size_t o = 0; o < options.size(); ++o) {
          const PieceOption& option = options[o];
          const Bytes need = std::max(option.backward_need, forward_need(option, first_pass, last));
          for (std::size_t room = room_for(need); room < rooms_; ++room) {
            double seconds = option.seconds;
            if (length > 1) {
              const std::ptrdiff_t left = after(room, option.kept);
              if (left < 0) continue;
              seconds += cost(first + 1, last, static_cast<std::size_t>(left));
            }
            offer(room, seconds, static_cast<Decision>(o));
          }
        }
        for (std::size_t cut = first + 1; cut < last; ++cut) {
          // The last of them has only to make what its own backward asks for.
          const double again = seconds_before[cut - 1] - seconds_before[first] + chain_.pieces[cut - 1].inner_seconds;
          const Bytes kept = chain_.leaving[first][cut];
          for (std::size_t room = room_for(bare_need(first, cut, first_pass, last)); room < rooms_; ++room) {
            const std::ptrdiff_t left = after(room, kept);
            if (left < 0) continue;
            offer(room, again + cost(cut, last, static_cast<std::size_t>(left)) + cost(first, cut, room),
                  static_cast<Decision>(-1 - static_cast<std::ptrdiff_t>(cut)));
          }
        }
      }
    }
  }

  void build(std::size_t first, std::size_t last, std::size_t room, bool first_pass, MemoryPlan& plan) const {
    while (first < last) {
      const Decision decision = decision_[index(first, last) + room];
      if (decision >= 0) {
        const PieceOption& option = options_of(first, first_pass)[static_cast<std::size_t>(decision)];
        for (const auto& [value, action] : option.actions) plan.actions[at(value)] = action;
        plan.segments.insert(plan.segments.end(), option.segments.begin(), option.segments.end());
        ++first;
        if (first < last) room = static_cast<std::size_t>(after(room, option.kept));
        continue;
      }
      const auto cut = static_cast<std::size_t>(-1 - decision);
      const auto left = static_cast<std::size_t>(after(room, chain_.leaving[first][cut]));
      plan.segments.push_back({chain_.pieces[first].begin, chain_.pieces[cut - 1].end});
      if (first_pass) keep_what_leaves(first, cut, plan);
      build(first, cut, room, /*first_pass=*/false, plan);
      first = cut;
      room = left;
    }
  }

  /// What operators after the pieces read of what they make.
  void keep_what_leaves(std::size_t first, std::size_t cut, MemoryPlan& plan) const {
    const Dataflow& flow = graph_.flow;
    for (OpId op = chain_.pieces[cut - 1].end; op < flow.ops(); ++op) {
      for (ValueId v : flow.inputs(op)) {
        const OpId producer = flow.producer(v);
        if (producer >= chain_.pieces[first].begin && producer < chain_.pieces[cut - 1].end)
          plan.actions[at(v)] = kKeep;
      }
    }
  }

  const StepGraph& graph_;
  const Chain& chain_;
  std::size_t count_;
  Bytes least_, unit_ = 1;  // of the smallest room, and from room to room
  std::size_t rooms_ = 1;
  std::vector<Bytes> replay_base_;  // by `last` of a range
  std::vector<float> cost_;
  std::vector<Decision> decision_;
};

}  // namespace

std::vector<MemoryPlan> chain_plans(const StepGraph& graph, const Chain& chain, Bytes least, Bytes most,
                                    std::size_t most_rooms) {
  std::vector<MemoryPlan> plans;
  if (chain.pieces.empty() || most < least) return plans;
  const Program program(graph, chain, least, most,
                        std::min(std::max(most_rooms, kFewestRooms), plans_per_stage(graph)));
  const MemoryPlan bare = bare_plan(graph);
  for (std::size_t room = program.rooms(); room-- > 0;) {
    if (!program.possible(room)) break;  // a smaller room holds no more
    MemoryPlan plan = bare;
    program.build(room, plan);
    const bool same = !plans.empty() && plans.back().actions == plan.actions && plans.back().segments == plan.segments;
    if (!same) plans.push_back(std::move(plan));
  }
  return plans;
}

}  // namespace snug::plan
