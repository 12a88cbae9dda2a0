#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace snug::testing {

/// Starts this program once more, as a child of this process, with the environment of now and `variables`; what it
/// writes goes to the file descriptor `output`. It is forked from a process that has loaded the libraries and begun
/// nothing else, as loading LibTorch takes a quarter of a second each time; that one is made by the first call, with
/// OMP_NUM_THREADS=1, which only a process that is not yet loaded minds.
pid_t start_this_program(const std::vector<std::pair<std::string, std::string>>& variables,
                         const std::vector<std::string>& arguments, int output);

/// What `main` begins with: returns with the arguments that the process was started with. In the process that others
/// are forked from, returns in those alone.
std::vector<std::string> arguments_of_this_process(int count, char** arguments);

}  // namespace snug::testing
