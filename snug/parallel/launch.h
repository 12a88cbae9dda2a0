#pragma once

#include <functional>
#include <optional>
#include <string>

namespace snug::parallel {

/// How this process was started beside others that train the same model.
struct Launched {
  int rank = 0;             ///< among all, from 0 on
  int size = 1;             ///< of all
  int local_rank = 0;       ///< among those of its machine
  int local_size = 1;       ///< of those, as far as the launcher says; more than local_rank
  std::string host;         ///< where they meet: a machine of theirs,
  int port = 0;             ///< and a port of it
  bool host_waits = false;  ///< the launcher itself waits there, and not the process of rank 0
  std::string launcher;     ///< "torchrun", "srun", "mpirun"

  friend bool operator==(const Launched&, const Launched&) = default;
};

/// The value of a variable; null where there is none.
using Environment = std::function<const char*(const char* variable)>;

/// What the environment says that torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: PyTorch's
/// documentation of torchrun), srun (SLURM_PROCID and others: Slurm's of srun), or mpirun (OMPI_COMM_WORLD_RANK and
/// others of Open MPI; PMI_RANK and others of MPICH and Intel MPI) leave there; nullopt where none of them has started
/// this process. Where srun and mpirun name no address, MASTER_ADDR does, or the machine is the first of the step's, or
/// this one, if it has all processes; MASTER_PORT says another port. Throws UsageError, naming the variable, where one
/// is missing or is not what it must be.
std::optional<Launched> launched(const Environment& environment);
/// Of this process.
std::optional<Launched> launched();

/// The first machine that Slurm's list of names stands for: "node[07-09,12],login" is node07 first. Empty for an empty
/// list.
std::string first_host(const std::string& slurm_list);

}  // namespace snug::parallel
