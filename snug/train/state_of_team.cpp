#include "snug/train/state_of_team.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <tuple>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/errors.h"
#include "snug/memory/owned_contents.h"

namespace snug::train {
namespace {

/// Which part, from which of its elements on, and how many.
constexpr std::int64_t kNumbersOfRequest = 3;
/// In place of a part: it is over, or nothing is asked for yet.
constexpr std::int64_t kDone = -1, kGoesOn = -2;

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string described(const std::map<std::string, std::vector<state::TensorPart>>& files) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [file, parts] : files) {
    for (const state::TensorPart& p : parts) {
      all.push_back({{"file", file},
                     {"name", p.name},
                     {"dtype", static_cast<int>(p.part.scalar_type())},
                     {"shape", p.shape},
                     {"runs", {p.runs.first, p.runs.length, p.runs.stride}},
                     {"first", p.first},
                     {"count", p.part.numel()}});
    }
  }
  return all.dump();
}

/// Elements of a contiguous tensor, in the host's memory.
class OnHost {
 public:
  OnHost(const at::Tensor& part, std::int64_t first, std::int64_t count) : there_(part) {
    if (first < 0 || count < 0 || first > part.numel() - count) {
      throw parallel::GroupFailed(fmt::format(
          "state: elements {} to {} of a part of {} were asked for; all processes must run the same build of snug",
          first, first + count, part.numel()));
    }
    const at::NoGradGuard no_grad;
    const bool is_copy = !part.is_cpu();
    elements_ = is_copy ? part.detach().view(-1).narrow(0, first, count).cpu() : part;
    const auto size = static_cast<std::int64_t>(part.itemsize());
    auto* const bytes = static_cast<std::byte*>(elements_.mutable_data_ptr());
    bytes_ = at::from_blob(bytes + (is_copy ? 0 : first * size), {count * size}, at::kByte);
  }
  /// As long as this lives.
  [[nodiscard]] const at::Tensor& bytes() const noexcept { return bytes_; }

 private:
  memory::ContentsThere there_;
  at::Tensor elements_, bytes_;
};

}  // namespace

StateOfTeam::StateOfTeam(const Team& team, std::map<std::string, std::vector<state::TensorPart>> files, Bytes piece,
                         std::chrono::milliseconds quiet)
    : team_(team),
      files_(std::move(files)),
      wholes_(wholes_of(team.gather_texts(described(files_)))),
      piece_(static_cast<std::int64_t>(piece)),
      quiet_(quiet) {
  for (const auto& [file, parts] : files_) mine_.insert(mine_.end(), parts.begin(), parts.end());
}

void StateOfTeam::check_is_whole(const Whole& whole) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;  // where each begins and ends
  for (const Place& place : whole.places) {
    place.runs.each_run(place.first, place.first + place.count,
                        [&](auto, std::int64_t at, std::int64_t count) { runs.emplace_back(at, at + count); });
  }
  std::ranges::sort(runs);
  std::int64_t there = 0;
  for (const auto& [begins, ends] : runs) {
    if (begins != there) break;
    there = ends;
  }
  if (const std::int64_t elements = elements_of(whole.shape);
      there != elements || (!runs.empty() && runs.back().second != elements))
    throw std::logic_error(
        fmt::format("training state: of {} the first {} of {} elements are there once", whole.name, there, elements));
}

StateOfTeam::Wholes StateOfTeam::wholes_of(const std::vector<std::string>& told) {
  Wholes wholes;
  using Which = std::tuple<PartRuns, std::int64_t, std::int64_t>;
  std::map<std::pair<std::string, std::string>, std::map<Which, Place>> places;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    const nlohmann::json parts = nlohmann::json::parse(told[rank]);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const nlohmann::json& part = parts[i];
      const Whole said{
          part["file"], part["name"], static_cast<at::ScalarType>(part["dtype"].get<int>()), part["shape"], {}};
      const std::pair key(said.file, said.name);
      const auto [whole, fresh] = wholes.try_emplace(key, said);
      if (whole->second.dtype != said.dtype || whole->second.shape != said.shape)
        throw std::logic_error(fmt::format("training state: rank {} has another {} than others", rank, said.name));
      const std::int64_t first = part["first"], count = part["count"];
      const PartRuns runs{part["runs"][0], part["runs"][1], part["runs"][2]};
      // What others have too is of the first of them.
      if (count > 0)
        places[key].try_emplace({runs, first, count}, Place{static_cast<int>(rank), i, runs, first, count});
    }
  }
  for (auto& [key, whole] : wholes) {
    for (const auto& [which, place] : places[key]) whole.places.push_back(place);
    check_is_whole(whole);
  }
  return wholes;
}

std::map<std::string, state::DividedTensors> StateOfTeam::divided() {
  std::map<std::string, state::DividedTensors> files;
  for (const auto& [file, parts] : files_) files[file].mine = parts;
  for (const auto& [key, whole] : wholes_) {
    files[whole.file].all.emplace(
        whole.name,
        state::TensorSource{whole.dtype, whole.shape, [this, &of = whole](const Write& to) { write(of, to); }});
  }
  return files;
}

void StateOfTeam::write(const Whole& whole, const Write& write) {
  const std::size_t size = c10::elementSize(whole.dtype);
  const std::int64_t elements = elements_of(whole.shape);
  const std::int64_t each = std::max<std::int64_t>(piece_ / static_cast<std::int64_t>(size), 1);
  std::vector<std::byte> window(static_cast<std::size_t>(std::min(each, elements)) * size);  // no budget counts it
  for (std::int64_t begin = 0; begin < elements; begin += each) {
    const std::int64_t end = std::min(begin + each, elements);
    for (const Place& place : whole.places) put(place, begin, end, size, window);
    write(std::span(window).first(static_cast<std::size_t>(end - begin) * size));
  }
}

void StateOfTeam::put(const Place& place, std::int64_t begin, std::int64_t end, std::size_t element_size,
                      std::span<std::byte> window) {
  const std::int64_t last = place.first + place.count;
  const std::int64_t from = std::clamp(place.runs.before(begin), place.first, last);
  const std::int64_t to = std::clamp(place.runs.before(end), place.first, last);
  if (from == to) return;
  const std::size_t bytes = static_cast<std::size_t>(to - from) * element_size;
  std::vector<std::byte> fetched;
  const std::byte* elements = nullptr;
  std::optional<OnHost> own;
  if (place.rank == 0) {
    own.emplace(mine_[place.index].part, from - place.first, to - from);
    elements = static_cast<const std::byte*>(own->bytes().const_data_ptr());
  } else {
    fetched.resize(bytes);
    const at::Tensor request = at::empty({kNumbersOfRequest}, at::kLong);
    auto* const numbers = request.mutable_data_ptr<std::int64_t>();
    numbers[0] = static_cast<std::int64_t>(place.index), numbers[1] = from - place.first, numbers[2] = to - from;
    const std::lock_guard lock(speaking_);
    team_.group().run(parallel::Send{request, place.rank});
    team_.group().run(
        parallel::Receive{at::from_blob(fetched.data(), {static_cast<std::int64_t>(bytes)}, at::kByte), place.rank});
    elements = fetched.data();
  }
  place.runs.each_run(from, to, [&](std::int64_t i, std::int64_t at, std::int64_t count) {
    std::memcpy(window.data() + static_cast<std::size_t>(at - begin) * element_size,
                elements + static_cast<std::size_t>(i - from) * element_size,
                static_cast<std::size_t>(count) * element_size);
  });
}

void StateOfTeam::write_together(const std::function<void()>& write) {
  if (!team_.is_first()) return serve();
  if (team_.size() == 1) return write();
  try {
    // A disk may take longer than the timeout of collectives, and the others must not take that for a failure.
    std::condition_variable_any over;
    const std::jthread goes_on([&](const std::stop_token& stop) {
      std::unique_lock lock(speaking_);
      while (!over.wait_for(lock, stop, quiet_, [] { return false; }) && !stop.stop_requested()) {
        try {
          tell(kGoesOn);
        } catch (const Error&) {  // the next message to these processes fails with the same error
          return;
        }
      }
    });
    write();
  } catch (const parallel::GroupFailed&) {
    throw;  // nobody can be told
  } catch (...) {
    tell(kDone);
    throw;
  }
  tell(kDone);
}

void StateOfTeam::tell(std::int64_t what) {
  for (int rank = 1; rank < team_.size(); ++rank)
    team_.group().run(parallel::Send{at::full({kNumbersOfRequest}, what, at::kLong), rank});
}

void StateOfTeam::serve() const {
  for (;;) {
    const at::Tensor asked = at::empty({kNumbersOfRequest}, at::kLong);
    team_.group().run(parallel::Receive{asked, 0});
    const auto* const numbers = asked.const_data_ptr<std::int64_t>();
    if (numbers[0] == kDone) return;
    if (numbers[0] == kGoesOn) continue;
    const OnHost asked_for(mine_.at(static_cast<std::size_t>(numbers[0])).part, numbers[1], numbers[2]);
    team_.group().run(parallel::Send{asked_for.bytes(), 0});
  }
}

}  // namespace snug::train
