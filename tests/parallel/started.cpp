#include "tests/parallel/started.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace snug::testing {
namespace {

constexpr const char* kSocket = "SNUG_TEST_FORKS_FROM";  // the file descriptor that a process to fork from listens on

[[noreturn]] void fail(const char* doing) {
  std::perror(doing);
  std::abort();
}

/// Texts, each ended by a zero byte: the number of arguments, they, and the environment.
struct Request {
  std::string texts;
  int output = -1;
};

/// Texts, and a file descriptor beside them, as the system sends and receives them.
class Message {
 public:
  /// In its memory, which must outlive this.
  explicit Message(std::string& texts) : data_{.iov_base = texts.data(), .iov_len = texts.size()} {
    all_.msg_iov = &data_;
    all_.msg_iovlen = 1;
    all_.msg_control = control_.data();
    all_.msg_controllen = control_.size();
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  msghdr* get() { return &all_; }

 private:
  iovec data_;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr all_{};
};

void send(int socket, Request& request) {
  Message message(request.texts);
  cmsghdr* const head = CMSG_FIRSTHDR(message.get());
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &request.output, sizeof(int));
  if (::sendmsg(socket, message.get(), MSG_NOSIGNAL) < 0) fail("sendmsg");
}

/// Ends this process where nobody is left to send one.
Request receive(int socket) {
  Request request;
  request.texts.resize(std::size_t{1} << 17);
  Message message(request.texts);
  const ssize_t size = ::recvmsg(socket, message.get(), 0);
  if (size <= 0) ::_exit(0);
  if ((message.get()->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) fail("recvmsg: too long");
  request.texts.resize(static_cast<std::size_t>(size));
  std::memcpy(&request.output, CMSG_DATA(CMSG_FIRSTHDR(message.get())), sizeof(int));
  return request;
}

std::vector<std::string> texts_of(const std::string& all) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < all.size(); at += texts.back().size() + 1) texts.emplace_back(&all[at]);
  return texts;
}

/// In a process that was forked: becomes what was asked for.
std::vector<std::string> become(const Request& request) {
  ::dup2(request.output, STDOUT_FILENO);
  ::dup2(request.output, STDERR_FILENO);
  ::close(request.output);
  const std::vector<std::string> texts = texts_of(request.texts);
  const auto environment = texts.begin() + 1 + std::stol(texts.front());
  ::clearenv();
  for (auto text = environment; text != texts.end(); ++text) {
    const std::size_t equals = text->find('=');
    ::setenv(text->substr(0, equals).c_str(), text->c_str() + equals + 1, 1);
  }
  return {texts.begin() + 1, environment};
}

/// A grandchild of this process: as its parent ends at once, it becomes a child of the program that has asked for it.
/// Returns its id; 0 in it.
pid_t fork_grandchild() {
  int ends[2];  // NOLINT
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  const pid_t between = ::fork();
  if (between < 0) fail("fork");
  if (between == 0) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(ends[0]);
      ::close(ends[1]);
      return 0;
    }
    ::_exit(::write(ends[1], &child, sizeof(child)) == sizeof(child) ? 0 : 1);
  }
  pid_t child = -1;
  if (::waitpid(between, nullptr, 0) != between || ::read(ends[0], &child, sizeof(child)) != sizeof(child))
    fail("fork");
  ::close(ends[0]);
  ::close(ends[1]);
  return child;
}

/// The process to fork from; returns the socket that it listens on.
int start_forking() {
  int ends[2];  // NOLINT
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) fail("prctl");
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    ::setenv(kSocket, std::to_string(::dup(ends[1])).c_str(), 1);
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::execl("/proc/self/exe", "processes", nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  return ends[0];
}

}  // namespace

pid_t start_this_program(const std::vector<std::pair<std::string, std::string>>& variables,
                         const std::vector<std::string>& arguments, int output) {
  static const int socket = start_forking();
  Request request{.texts = std::to_string(arguments.size()) + '\0', .output = output};
  for (const std::string& argument : arguments) request.texts += argument + '\0';
  for (char** text = environ; *text != nullptr; ++text) request.texts += std::string(*text) + '\0';
  for (const auto& [name, value] : variables) request.texts += name + "=" + value + '\0';
  send(socket, request);
  pid_t child = -1;
  if (::recv(socket, &child, sizeof(child), 0) != sizeof(child)) fail("recv");
  return child;
}

std::vector<std::string> arguments_of_this_process(int count, char** arguments) {
  const char* const listens = std::getenv(kSocket);
  if (listens == nullptr) return {arguments, arguments + count};
  const int socket = std::atoi(listens);  // NOLINT: the number that was written above
#ifndef __SANITIZE_THREAD__               // which has one of its own
  const std::filesystem::directory_iterator threads("/proc/self/task");
  if (std::distance(begin(threads), end(threads)) != 1) fail("a thread has been started before main");
#endif
  for (;;) {
    const Request request = receive(socket);
    const pid_t child = fork_grandchild();
    if (child == 0) {
      ::close(socket);
      return become(request);
    }
    ::close(request.output);
    if (::send(socket, &child, sizeof(child), MSG_NOSIGNAL) != sizeof(child)) ::_exit(0);
  }
}

}  // namespace snug::testing
