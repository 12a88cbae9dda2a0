#include "snug/train/state_of_team.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "snug/base/bytes.h"

namespace snug::train {
namespace {

constexpr std::int64_t kDone = -1;

std::string described(const std::map<std::string, std::vector<state::TensorPart>>& files) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [file, parts] : files) {
    for (const state::TensorPart& p : parts) {
      all.push_back({{"file", file},
                     {"name", p.name},
                     {"dtype", static_cast<int>(p.part.scalar_type())},
                     {"shape", p.shape},
                     {"first", p.first},
                     {"count", p.part.numel()}});
    }
  }
  return all.dump();
}

/// What a contiguous tensor of the CPU has in memory.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.mutable_data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())}, at::kByte);
}

}  // namespace

StateOfTeam::StateOfTeam(const Team& team, std::map<std::string, std::vector<state::TensorPart>> files, Bytes piece)
    : team_(team),
      files_(std::move(files)),
      wholes_(wholes_of(team.gather_texts(described(files_)))),
      piece_(static_cast<std::int64_t>(piece)) {
  for (const auto& [file, parts] : files_) mine_.insert(mine_.end(), parts.begin(), parts.end());
  for (const auto& [name, whole] : wholes_)
    to_fetch_ +=
        static_cast<std::size_t>(std::ranges::count_if(whole.places, [](const Place& p) { return p.rank != 0; }));
}

StateOfTeam::Wholes StateOfTeam::wholes_of(const std::vector<std::string>& told) {
  Wholes wholes;
  std::map<std::pair<std::string, std::string>, std::multimap<std::int64_t, Place>> places;  // by the first element
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
      if (const std::int64_t count = part["count"]; count > 0)
        places[key].emplace(part["first"].get<std::int64_t>(), Place{static_cast<int>(rank), i, count});
    }
  }
  for (auto& [key, whole] : wholes) {
    std::int64_t elements = 1, end = 0;
    for (const std::int64_t size : whole.shape) elements *= size;
    for (const auto& [first, place] : places[key]) {
      if (first != end) continue;  // what others have too
      whole.places.push_back(place);
      end += place.count;
    }
    if (end != elements)
      throw std::logic_error(
          fmt::format("training state: of {} there are {} of {} elements", whole.name, end, elements));
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
  for (const Place& place : whole.places) {
    if (place.rank != 0) {
      fetch(place, whole.dtype, write);
      continue;
    }
    const at::Tensor bytes = bytes_of(mine_[place.index].part);
    write({static_cast<const std::byte*>(bytes.const_data_ptr()), bytes.nbytes()});
  }
}

void StateOfTeam::fetch(const Place& place, at::ScalarType dtype, const Write& write) {
  const std::int64_t bytes = place.count * static_cast<std::int64_t>(c10::elementSize(dtype));
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(bytes, piece_)));  // beside what a budget counts
  team_.group().run(parallel::Send{at::full({}, static_cast<std::int64_t>(place.index), at::kLong), place.rank});
  std::exception_ptr failure;  // a full disk: the other process sends the rest all the same
  for (std::int64_t at = 0; at < bytes; at += piece_) {
    const std::int64_t count = std::min(piece_, bytes - at);
    team_.group().run(parallel::Receive{at::from_blob(piece.data(), {count}, at::kByte), place.rank});
    if (failure) continue;
    try {
      write(std::span(piece).first(static_cast<std::size_t>(count)));
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
  // So that nobody waits for files that are written and read again.
  if (--left_ == 0) tell_done();
}

void StateOfTeam::done() {
  if (is_due_) tell_done();
}

void StateOfTeam::tell_done() {
  is_due_ = false;
  for (int rank = 1; rank < team_.size(); ++rank)
    team_.group().run(parallel::Send{at::full({}, kDone, at::kLong), rank});
}

void StateOfTeam::serve() const {
  for (;;) {
    const at::Tensor asked = at::empty({}, at::kLong);
    team_.group().run(parallel::Receive{asked, 0});
    const auto index = asked.item<std::int64_t>();
    if (index == kDone) return;
    const at::Tensor bytes = bytes_of(mine_.at(static_cast<std::size_t>(index)).part);
    for (std::int64_t at = 0; at < bytes.numel(); at += piece_)
      team_.group().run(parallel::Send{bytes.narrow(0, at, std::min(piece_, bytes.numel() - at)), 0});
  }
}

}  // namespace snug::train
