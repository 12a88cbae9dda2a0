#pragma once

#include <string>
#include <vector>

namespace snug::replay {

/// Names of the operators that this thread calls while it lives, in order, those that autograd calls on their behalf
/// included. Logs nest: an inner one takes over until it ends. Once one has been made, every operator of the process is
/// a little slower: LibTorch's observers are not to be removed while others run.
class OperatorLog {
 public:
  explicit OperatorLog(std::vector<std::string>& names);
  ~OperatorLog();
  OperatorLog(const OperatorLog&) = delete;
  OperatorLog& operator=(const OperatorLog&) = delete;

 private:
  std::vector<std::string>* previous_;
};

/// Where two logs part, in words: "they part at operator 3 of 7: aten::sin in forward, aten::cos when it ran again".
std::string where_they_part(const std::vector<std::string>& forward, const std::vector<std::string>& again);

}  // namespace snug::replay
