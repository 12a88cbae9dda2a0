/// Of test programs whose tests run in several processes.
#include <gmock/gmock.h>

#include "tests/parallel/started.h"

int main(int argc, char** argv) {
  std::vector<std::string> arguments = snug::testing::arguments_of_this_process(argc, argv);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  int count = static_cast<int>(arguments.size());
  ::testing::InitGoogleMock(&count, pointers.data());
  return RUN_ALL_TESTS();
}
