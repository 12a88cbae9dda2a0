#include "tests/parallel/processes.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <random>
#include <thread>
#include <utility>

#include "tests/parallel/started.h"

namespace snug::testing {
namespace {

constexpr const char* kOfTest = "SNUG_TEST_OF_PROCESSES";  // the test whose process this is,
constexpr const char* kOfCall = "SNUG_TEST_CALL";          // and which of its calls has started it

std::string this_test() {
  const auto* const info = ::testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("{}.{}", info->test_suite_name(), info->name());
}

/// One that nobody listens on now; none of those that the system gives to connections and to who does not care, as it
/// might until the first process listens there.
int free_port() {
  constexpr int kFirst = 16'000, kEnd = 32'000;
  static std::random_device random;
  for (;;) {
    const int port = std::uniform_int_distribution(kFirst, kEnd - 1)(random);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_free = ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;  // NOLINT
    ::close(fd);
    if (is_free) return port;
  }
}

struct Child {
  pid_t pid = 0;
  int output = -1;
  bool running = true;
  Ended ended{};
};

Child start(int rank, int count, int port, int call) {
  const std::vector<std::pair<std::string, std::string>> variables = {{"RANK", std::to_string(rank)},
                                                                      {"WORLD_SIZE", std::to_string(count)},
                                                                      {"LOCAL_RANK", std::to_string(rank)},
                                                                      {"LOCAL_WORLD_SIZE", std::to_string(count)},
                                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                                      {"MASTER_PORT", std::to_string(port)},
                                                                      {kOfTest, this_test()},
                                                                      {kOfCall, std::to_string(call)},
                                                                      {"OMP_NUM_THREADS", "1"},
                                                                      {"GTEST_TOTAL_SHARDS", "1"},
                                                                      {"GTEST_SHARD_INDEX", "0"}};
  int ends[2];  // NOLINT
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  Child child;
  child.output = ends[0];
  child.pid = start_this_program(variables, {"processes", "--gtest_filter=" + this_test()}, ends[1]);
  ::close(ends[1]);
  ::fcntl(child.output, F_SETFL, O_NONBLOCK);  // NOLINT
  return child;
}

void look_after(Child& child) {
  char text[4096];  // NOLINT
  for (ssize_t n = 0; (n = ::read(child.output, text, sizeof(text))) > 0;) child.ended.output.append(text, n);
  int status = 0;
  if (!child.running || ::waitpid(child.pid, &status, WNOHANG) != child.pid) return;
  child.running = false;
  if (WIFSIGNALED(status)) child.ended.signal = WTERMSIG(status);
  if (WIFEXITED(status)) child.ended.exit_code = WEXITSTATUS(status);
  for (ssize_t n = 0; (n = ::read(child.output, text, sizeof(text))) > 0;) child.ended.output.append(text, n);
  ::close(child.output);
}

/// In a process that was started: it ends here.
[[noreturn]] void run_as_child(const std::function<void(const parallel::Launched&)>& body) {
  int code = 0;
  try {
    at::set_num_threads(1);
    body(*parallel::launched());
    code = ::testing::Test::HasFailure() ? 1 : 0;
  } catch (const Error& error) {
    std::cout << "ERROR " << error.what() << std::endl;  // NOLINT: flushed
    code = error.exit_code() + 10;
  } catch (const std::exception& error) {
    std::cout << "EXCEPTION " << error.what() << std::endl;  // NOLINT: flushed
    code = 20;
  }
  std::cout.flush();
  ::_exit(code);
}

}  // namespace

bool is_started_by_test() { return std::getenv(kOfTest) != nullptr; }

std::vector<Ended> outcomes_of(int count, const std::function<void(const parallel::Launched&)>& body, double seconds,
                               const std::function<void(const std::vector<int>&)>& each) {
  static int calls = 0;
  static std::string of;
  if (std::exchange(of, this_test()) != this_test()) calls = 0;
  const int call = calls++;
  if (is_started_by_test()) {
    if (std::to_string(call) == std::getenv(kOfCall)) run_as_child(body);
    return std::vector<Ended>(static_cast<std::size_t>(count));
  }
  const int port = free_port();
  std::vector<Child> children;
  std::vector<int> ids;
  for (int rank = 0; rank < count; ++rank) {
    children.push_back(start(rank, count, port, call));
    ids.push_back(children.back().pid);
  }
#ifdef __SANITIZE_ADDRESS__
  constexpr double kSlower = 5;
#else
  constexpr double kSlower = 1;
#endif
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(kSlower * seconds);
  bool running = true;
  while (running) {
    running = false;
    for (Child& child : children) {
      if (child.running) look_after(child);
      running |= child.running;
    }
    if (!running) break;
    if (each) each(ids);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (std::chrono::steady_clock::now() < until) continue;
    for (Child& child : children) {
      if (!child.running) continue;
      ::kill(child.pid, SIGKILL);
      ::waitpid(child.pid, nullptr, 0);
      look_after(child);
      child.running = false;
      child.ended.signal = SIGKILL;
      child.ended.output += fmt::format("\n(it was ended after {} s)", kSlower * seconds);
    }
  }
  std::vector<Ended> ended;
  for (Child& child : children) ended.push_back(std::move(child.ended));
  return ended;
}

void in_processes(int count, const std::function<void(parallel::World&)>& body, double seconds) {
  const std::vector<Ended> ended = outcomes_of(
      count,
      [&](const parallel::Launched& launched) {
        const auto world = parallel::World::meet(launched, {.timeout = std::chrono::seconds(30)});
        body(*world);
        world->all()->run(parallel::Barrier{});  // nobody leaves while others need it
      },
      seconds);
  for (int rank = 0; rank < count; ++rank) {
    const Ended& one = ended[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(one.exit_code == 0 && one.signal == 0)
        << "the process of rank " << rank << " ended with " << one.exit_code << ", by signal " << one.signal << ":\n"
        << one.output;
  }
}

}  // namespace snug::testing
