#include "snug/parallel/launch.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <span>
#include <string_view>

#include "snug/base/errors.h"
#include "snug/base/hash.h"

namespace snug::parallel {
namespace {

constexpr int kUsualPort = 29500;  // torchrun's
constexpr int kPorts = 10'000;     // from there on

/// Where a launcher says what.
struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;  // null: not said; of srun SLURM_STEP_TASKS_PER_NODE is a list of counts
};
constexpr Variables kTorchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Variables kSrun{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr};
constexpr std::array kMpirun = {
    Variables{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Variables{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

class Reader {
 public:
  Reader(const Environment& environment, const char* launcher) : environment_(environment), launcher_(launcher) {}

  [[nodiscard]] std::optional<std::string_view> text(const char* name) const {
    const char* const found = environment_(name);
    return found == nullptr || *found == '\0' ? std::nullopt : std::optional<std::string_view>(found);
  }
  [[nodiscard]] std::string_view needed_text(const char* name) const {
    if (const auto found = text(name)) return *found;
    throw UsageError(
        fmt::format("parallel: {} started this process, and {} is not set; set it in all processes", launcher_, name));
  }
  [[nodiscard]] std::optional<int> number(const char* name, int least, int below) const {
    const auto found = text(name);
    if (!found) return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(found->data(), found->data() + found->size(), value);
    if (error != std::errc() || end != found->data() + found->size() || value < least || value >= below) {
      throw UsageError(
          fmt::format("parallel: {} = \"{}\", as {} started this process; it must be a number from {} to {}", name,
                      *found, launcher_, least, below - 1));
    }
    return value;
  }
  [[nodiscard]] int needed_number(const char* name, int least, int below) const {
    (void)needed_text(name);
    return *number(name, least, below);
  }

 private:
  const Environment& environment_;
  const char* launcher_;
};

constexpr int kMost = std::numeric_limits<int>::max();

Launched read(const Reader& reader, const Variables& names) {
  Launched found;
  found.launcher = names.launcher;
  found.size = reader.needed_number(names.size, 1, kMost);
  found.rank = reader.needed_number(names.rank, 0, found.size);
  if (names.local_size != nullptr) found.local_size = reader.number(names.local_size, 1, found.size + 1).value_or(1);
  found.local_rank = reader.number(names.local_rank, 0, found.size).value_or(0);
  found.local_size = std::max(found.local_size, found.local_rank + 1);
  found.port = reader.number("MASTER_PORT", 1, 65536).value_or(kUsualPort);
  if (const auto host = reader.text("MASTER_ADDR")) found.host = *host;
  return found;
}

Launched by_torchrun(const Environment& environment) {
  const Reader reader(environment, "torchrun");
  Launched found = read(reader, kTorchrun);
  found.host = reader.needed_text("MASTER_ADDR");
  found.port = reader.needed_number("MASTER_PORT", 1, 65536);
  found.host_waits = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return found;
}

Launched by_srun(const Environment& environment) {
  const Reader reader(environment, "srun");
  Launched found = read(reader, kSrun);
  if (reader.number("SLURM_STEP_NUM_NODES", 1, kMost) == 1) found.local_size = found.size;
  if (found.host.empty()) found.host = first_host(std::string(reader.text("SLURM_STEP_NODELIST").value_or("")));
  if (found.host.empty()) (void)reader.needed_text("MASTER_ADDR");
  if (reader.text("MASTER_PORT")) return found;
  // Jobs that share a machine must not meet each other.
  const int job = reader.number("SLURM_JOB_ID", 0, kMost).value_or(0),
            step = reader.number("SLURM_STEP_ID", 0, kMost).value_or(0);
  found.port = kUsualPort + (job % kPorts * 7 + step % kPorts) % kPorts;
  return found;
}

/// Runs on one machine must not meet each other.
int port_of(const Reader& reader) {
  for (const char* const name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"}) {
    if (const auto job = reader.text(name)) {
      const auto hash = hash_64(std::as_bytes(std::span(job->data(), job->size())));
      return kUsualPort + static_cast<int>(hash % static_cast<std::uint64_t>(kPorts));
    }
  }
  return kUsualPort;
}

Launched by_mpirun(const Environment& environment, const Variables& names) {
  const Reader reader(environment, names.launcher);
  Launched found = read(reader, names);
  if (found.host.empty() && found.local_size == found.size) found.host = "127.0.0.1";
  if (!reader.text("MASTER_PORT")) found.port = port_of(reader);
  if (found.host.empty()) (void)reader.needed_text("MASTER_ADDR");
  return found;
}

}  // namespace

std::string first_host(const std::string& slurm_list) {
  const std::size_t bracket = slurm_list.find('['), comma = slurm_list.find(',');
  if (bracket == std::string::npos || comma < bracket) return slurm_list.substr(0, comma);
  const std::size_t close = slurm_list.find(']', bracket);
  const std::size_t end = std::min(slurm_list.find_first_of(",-]", bracket), slurm_list.size());
  std::string name = slurm_list.substr(0, bracket) + slurm_list.substr(bracket + 1, end - bracket - 1);
  if (close != std::string::npos) {
    const std::size_t next = std::min(slurm_list.find(',', close), slurm_list.size());
    name += first_host(slurm_list.substr(close + 1, next - close - 1));  // as in "rack[1-2]node[3-4]"
  }
  return name;
}

std::optional<Launched> launched(const Environment& environment) {
  const Reader reader(environment, "");
  // The nearest one says how this process was started: torchrun may run inside of srun.
  if (reader.text(kTorchrun.rank) && reader.text(kTorchrun.size)) return by_torchrun(environment);
  if (reader.text(kMpirun[0].rank)) return by_mpirun(environment, kMpirun[0]);
  // Also set in a job's script, which srun has not started, are all but these. Slurm's PMI-2 sets ranks of its own.
  const bool of_step = reader.text(kSrun.rank) && reader.text(kSrun.size) && reader.text("SLURM_STEP_ID");
  const bool mpi = reader.text(kMpirun[1].rank) && reader.text(kMpirun[1].local_rank);
  if (of_step && !mpi) return by_srun(environment);
  if (reader.text(kMpirun[1].rank)) return by_mpirun(environment, kMpirun[1]);
  if (reader.text(kTorchrun.rank) || reader.text(kTorchrun.size)) {
    throw UsageError(fmt::format("parallel: of RANK and WORLD_SIZE only {} is set; set both, or none for one process",
                                 reader.text(kTorchrun.rank) ? kTorchrun.rank : kTorchrun.size));
  }
  return std::nullopt;
}

std::optional<Launched> launched() {
  return launched([](const char* variable) { return std::getenv(variable); });  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace snug::parallel
