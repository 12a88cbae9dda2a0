#include "snug/memory/host_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/stream_mark.h"

namespace snug::memory {
namespace {

TEST(HostThreads, OneDoesItsTasksInOrder) {
  std::vector<int> done;
  {
    HostThreads thread(1);
    for (int i = 0; i < 100; ++i) thread.run([&done, i] { done.push_back(i); });
  }
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(done, expected) << "all are done before it goes";
}

TEST(HostThreads, AnExceptionComesOutAndTheNextTaskIsDone) {
  HostThreads threads(2);
  const auto failed = threads.run([] { throw std::runtime_error("no"); });
  EXPECT_THROW(failed.get(), std::runtime_error);
  EXPECT_THROW(failed.get(), std::runtime_error) << "for each who asks";
  EXPECT_NO_THROW(threads.run([] {}).get());
}

TEST(HostThreads, WhatATaskHoldsIsGoneWhenItIsOver) {
  HostThreads threads(2);
  for (int i = 0; i < 100; ++i) {
    auto held = std::make_shared<int>(i);
    const auto over = threads.run([held] {});
    over.wait();
    EXPECT_EQ(held.use_count(), 1);
  }
  EXPECT_GT(threads.seconds(), 0);
}

/// A worker that loads data, say, has what its parent had: it must neither wait for threads that it has not, nor use
/// them.
TEST(HostThreads, AForkedProcessHasNone) {
  auto threads = std::make_unique<HostThreads>(4);
  for (int i = 0; i < 8; ++i) threads->run([] {}).wait();  // some wait for more
  const StreamMark pending(threads->run([] { ::usleep(300'000); }));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    int refused = 0;
    try {
      threads->run([] {});
    } catch (const Error&) {
      ++refused;
    }
    try {
      pending.wait();
    } catch (const Error&) {
      ++refused;
    }
    threads.reset();
    ::_exit(refused);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "it hangs";
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_NO_THROW(pending.wait());
}

}  // namespace
}  // namespace snug::memory
