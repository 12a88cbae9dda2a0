#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace snug {

/// A value that Python's pickle module has written. Classes and functions are names here, and what would be made by
/// calling one is what it would be called with: nothing is imported or run.
struct Pickled {
  struct None {};
  struct Text {
    std::string text;
  };
  struct Bytes {
    std::string bytes;
  };
  using List = std::vector<const Pickled*>;  ///< a list, a tuple or a set
  struct Entry {
    const Pickled* key;
    const Pickled* value;
  };
  using Dict = std::vector<Entry>;
  /// A class or a function: "torch.float32".
  struct Global {
    std::string name;
  };
  struct Object {
    std::string_view made_by;  ///< the name of a Global; empty for what else has been called
    List arguments;
    const Pickled* state = nullptr;  ///< what has been set of it since, if it has
    List items{};                    ///< that have been added
    Dict entries{};
  };
  /// What lies beside the pickle, as the elements of a tensor do: what it is known by.
  struct Beside {
    const Pickled* id;
  };
  std::variant<None, bool, std::int64_t, double, Text, Bytes, List, Dict, Global, Object, Beside> value;
};

/// A pickle of protocol 2 to 5, as https://docs.python.org/3/library/pickletools.html has its instructions.
class PickleFile {
 public:
  /// `name` of the file, for errors. Throws DamagedFile for what is no pickle, or has instructions that no data is
  /// written with.
  PickleFile(std::span<const std::uint8_t> bytes, std::string_view name);

  /// Lives as long as this.
  [[nodiscard]] const Pickled& root() const noexcept { return *root_; }

 private:
  std::deque<Pickled> values_;
  const Pickled* root_ = nullptr;
};

}  // namespace snug
