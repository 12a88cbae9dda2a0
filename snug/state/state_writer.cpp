#include "snug/state/state_writer.h"

#include <ATen/ops/empty_like.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "snug/base/durable_file.h"
#include "snug/base/errors.h"
#include "snug/base/file_hash.h"
#include "snug/base/mapped_file.h"
#include "snug/base/text_file.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/tag.h"
#include "snug/state/safetensors.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const fs::path& path, std::string_view what, const std::error_code& error) {
  throw Error(fmt::format("saving training state: {}: {}: {}; the states that were there are still there",
                          path.string(), what, error.message()));
}

/// Of the blocks that a copy of them takes.
Bytes copied_bytes(const NamedTensors& tensors) {
  Bytes sum = 0;
  for (const auto& [name, tensor] : tensors)
    sum += memory::device_memory(tensor.device()).rounded(static_cast<Bytes>(tensor.nbytes()));
  return sum;
}

NamedTensors copy_of(const NamedTensors& tensors) {
  const memory::TagScope tag(memory::Tag::Staging);
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors) copies.emplace_back(name, tensor.detach().clone());
  return copies;
}

/// The process that an unfinished folder's name ends with.
std::optional<pid_t> writer_of(const std::string& name) {
  const std::size_t at = name.find(kUnfinished);
  if (at == std::string::npos || !step_of_name(name.substr(0, at))) return std::nullopt;
  const std::string digits = name.substr(at + std::string_view(kUnfinished).size());
  pid_t process = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), process);
  return error == std::errc{} && end == digits.data() + digits.size() ? std::optional(process) : std::nullopt;
}

/// What is in a folder; as much as can be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    paths.push_back(entry->path());
  }
  return paths;
}

bool is_dead(pid_t process) { return ::kill(process, 0) != 0 && errno == ESRCH; }

}  // namespace

/// A state that is being written; removed by the destructor unless it was finished.
class StateWriter::Unfinished {
 public:
  Unfinished(const fs::path& folder, std::int64_t step)
      : final_(folder / state_name(step)), path_(final_.string() + kUnfinished + std::to_string(::getpid())) {
    manifest_.step = step;
    std::error_code error;
    fs::remove_all(path_, error);
    if (!fs::create_directory(path_, error)) fail(path_, "it cannot be made", error);
  }
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;
  ~Unfinished() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }

  /// Tensors, or sources of them, by name.
  template <class Tensors>
  void add(const std::string& name, const Tensors& tensors) {
    const std::string file = name + ".safetensors";
    write_safetensors(path_ / file, {tensors.begin(), tensors.end()});
    note(file);
  }

  void add_text(const std::string& file, const std::string& text) {
    write_text(file, text);
    note(file);
  }

  void finish() {
    write_text(kManifest, format_manifest(manifest_));
    if (::rename(path_.c_str(), final_.c_str()) != 0) replace();
    try {
      sync_folder(final_.parent_path());
    } catch (const std::system_error& error) {
      fail(final_, "its name may not be on the disk", error.code());
    }
  }

 private:
  void write_text(const std::string& file, const std::string& text) {
    try {
      snug::write_text(path_ / file, text);
    } catch (const std::system_error& error) {
      fail(path_ / file, "it cannot be written", error.code());
    }
  }

  /// Hashes what is on the disk, and not what was to be there.
  void note(const std::string& file) {
    try {
      FileHash written = file_hash(path_ / file);
      manifest_.files.insert_or_assign(file, Manifest::File{written.bytes, std::move(written.hash)});
    } catch (const std::system_error& error) {
      fail(path_ / file, "it cannot be read", error.code());
    }
  }

  /// A state of that step is there: both change places at once, and the older one goes.
  void replace() {
    const std::error_code first(errno, std::generic_category());
    if (errno != EEXIST && errno != ENOTEMPTY) fail(final_, "it cannot be renamed", first);
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) == 0) return;
    // Not every file system can. The older state goes to a name that nothing removes until the new one is there.
    const std::string aside = final_.string() + ".replaced";
    std::error_code error, back;
    fs::remove_all(aside, error);
    fs::rename(final_, aside, error);
    if (!error) {
      fs::rename(path_, final_, error);
      if (error) fs::rename(aside, final_, back);
    }
    if (error) fail(final_, "it cannot be renamed", error);
    fs::remove_all(aside, error);
  }

  fs::path final_, path_;
  Manifest manifest_;
};

StateWriter::StateWriter(fs::path folder, Retention retention) : folder_(std::move(folder)), retention_(retention) {
  if (retention_.last < 1 || retention_.best < 0) {
    throw UsageError(fmt::format("training state: keeping the last {} and the best {}; at least 1 and 0",
                                 retention_.last, retention_.best));
  }
  std::error_code error;
  fs::create_directories(folder_, error);
  if (error) fail(folder_, "it cannot be made", error);
  remove_abandoned();
}

StateWriter::~StateWriter() {
  if (background_.joinable()) background_.join();
}

void StateWriter::wait() {
  if (background_.joinable()) background_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void StateWriter::write(const TrainingState& state, std::int64_t step, const std::map<std::string, std::string>& texts,
                        Bytes room) {
  wait();
  auto unfinished = std::make_shared<Unfinished>(folder_, step);
  unfinished->add_text(kValues, state.values().dump(2) + "\n");
  for (const auto& [file, text] : texts) unfinished->add_text(file, text);
  for (const auto& [name, tensors] : state.divided()) unfinished->add(name, tensors.all);
  std::map<std::string, NamedTensors> copies;
  copied_ = 0;
  for (const auto& [name, tensors] : state.tensors()) {
    const Bytes bytes = copied_bytes(tensors);
    if (bytes > room - copied_) {
      unfinished->add(name, tensors);
      continue;
    }
    try {
      copies.emplace(name, copy_of(tensors));
      copied_ += bytes;
    } catch (const OutOfBudget&) {
      unfinished->add(name, tensors);
    }
  }
  if (copies.empty()) {
    unfinished->finish();
    prune(step);
    return;
  }
  background_ = std::thread([this, step, unfinished, copies = std::move(copies)]() mutable {
    try {
      for (auto& [name, tensors] : copies) {
        unfinished->add(name, tensors);
        tensors.clear();
      }
      unfinished->finish();
      prune(step);
    } catch (...) {
      failure_ = std::current_exception();
    }
    copies.clear();
    unfinished.reset();
  });
}

void StateWriter::set_metric(std::int64_t step, double metric) {
  wait();
  const fs::path path = folder_ / state_name(step) / kManifest;
  try {
    Manifest manifest = parse_manifest(read_text(path), path.string());
    manifest.metric = metric;
    write_text(path, format_manifest(manifest));
  } catch (const std::system_error& error) {
    fail(path, "the metric cannot be noted", error.code());
  }
  prune(step);
}

void StateWriter::remove_abandoned() const {
  std::vector<fs::path> abandoned;
  for (const fs::path& path : entries_of(folder_)) {
    const auto writer = writer_of(path.filename().string());
    // In a container the same number comes again and again.
    if (writer && (*writer == ::getpid() || is_dead(*writer))) abandoned.push_back(path);
  }
  std::error_code ignored;
  for (const fs::path& path : abandoned) fs::remove_all(path, ignored);
}

/// What cannot be removed stays; the state that was written is as good.
void StateWriter::prune(std::int64_t written) const noexcept try {
  struct State {
    fs::path path;
    std::int64_t step;
    std::optional<double> metric;
  };
  std::vector<State> states;
  for (const fs::path& path : entries_of(folder_)) {
    const auto step = step_of_name(path.filename().string());
    if (!step) continue;
    try {
      const fs::path manifest = path / kManifest;
      const MappedFile file(manifest);
      states.push_back({path, *step, parse_manifest(file.text(), manifest.string()).metric});
    } catch (const std::exception&) {
      // A damaged one takes no good one's place, and is left for somebody to look at.
    }
  }
  std::set<std::int64_t> kept{written};
  std::ranges::sort(states, std::greater(), &State::step);
  for (const State& s : states) {
    if (std::cmp_less(kept.size(), retention_.last)) kept.insert(s.step);
  }
  std::vector<State> best = states;
  std::erase_if(best, [](const State& s) { return !s.metric; });
  std::ranges::stable_sort(best, {}, [](const State& s) { return *s.metric; });
  for (std::size_t i = 0; i < best.size() && std::cmp_less(i, retention_.best); ++i) kept.insert(best[i].step);
  for (const State& s : states) {
    if (kept.contains(s.step)) continue;
    // Under another name first: half removed it would pass for a damaged state.
    const fs::path doomed = s.path.string() + kUnfinished + std::to_string(::getpid());
    std::error_code error;
    fs::rename(s.path, doomed, error);
    if (!error) fs::remove_all(doomed, error);
  }
} catch (...) {
}

}  // namespace snug::state
