#pragma once

// LibTorch's packages hold Gloo, and c10d/ProcessGroupGloo.hpp, but not the headers of Gloo that it includes. These
// declare what it names, and nothing is made of them here: c10d itself makes devices and contexts.
#include <chrono>
#include <string>
#include <vector>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};
}  // namespace transport

namespace rendezvous {
/// A base of one of its classes.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& data) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout);
};
}  // namespace rendezvous

}  // namespace gloo
