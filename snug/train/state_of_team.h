#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/state/divided_tensors.h"
#include "snug/train/team.h"

namespace snug::train {

/// Training state of which each process of a team has parts, in the hands of the first, which saves it as one process
/// would have it: the others send theirs, piece by piece, when it asks. So a run goes on with any number of processes.
class StateOfTeam {
 public:
  /// All processes at once: by the names of the files that they are saved in. The parts must stay the same tensors.
  /// `piece`: the most bytes of a message. `quiet`: time between messages to the waiting processes; must be shorter
  /// than the timeout of collectives. Throws std::logic_error where they do not make up the same wholes.
  StateOfTeam(const Team& team, std::map<std::string, std::vector<state::TensorPart>> files, Bytes piece = 4_MiB,
              std::chrono::milliseconds quiet = std::chrono::seconds(1));

  /// To be saved, and restored: of the first process it may be read where all write_together().
  [[nodiscard]] std::map<std::string, state::DividedTensors> divided();

  /// All processes at once: the first one calls `write`, which may read all of divided(), and the others send it what
  /// they have until it is over, however long that takes. Throws what `write` throws, in the first.
  void write_together(const std::function<void()>& write);

 private:
  /// Where elements of a whole are.
  struct Place {
    int rank;
    std::size_t index;          // among that process's parts
    PartRuns runs;              // of the whole
    std::int64_t first, count;  // of the elements of the runs
  };
  struct Whole {
    std::string file, name;
    at::ScalarType dtype;
    std::vector<std::int64_t> shape;
    std::vector<Place> places;  // of which each has other elements
  };
  using Write = std::function<void(std::span<const std::byte>)>;
  using Wholes = std::map<std::pair<std::string, std::string>, Whole>;  // by file and name
  static Wholes wholes_of(const std::vector<std::string>& told);
  static void check_is_whole(const Whole& whole);
  void write(const Whole& whole, const Write& write);
  void serve() const;
  void tell(std::int64_t what);
  /// Puts what a place has of the elements from `begin` to `end` of a whole where they belong in `window`.
  void put(const Place& place, std::int64_t begin, std::int64_t end, std::size_t element_size,
           std::span<std::byte> window);

  Team team_;
  std::map<std::string, std::vector<state::TensorPart>> files_;
  std::vector<state::TensorPart> mine_;  // of all files, in their order
  Wholes wholes_;
  std::int64_t piece_;
  std::chrono::milliseconds quiet_;
  std::mutex speaking_;  // held while a message is sent: the writer and the thread that reports progress both do
};

}  // namespace snug::train
