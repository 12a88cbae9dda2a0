#include "snug/base/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

#include "snug/base/damaged_file.h"

namespace snug {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

PickleFile read(const std::string& bytes) {
  return {{reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, "a pickle"};
}

/// Each of them has four bytes of the file, and not a name of its own: copies would take 40 GB.
TEST(Pickle, ObjectsShareTheNameOfWhatHasMadeThem) {
  constexpr std::size_t kObjects = 40'000;
  const std::string name(1 << 20, 'x');
  std::string bytes = "\x80\x02]cm\n" + name + "\nq\x01" + "a";
  for (std::size_t i = 0; i < kObjects; ++i) bytes += "h\x01)Ra";
  const PickleFile file = read(bytes + ".");
  const auto& all = std::get<Pickled::List>(file.root().value);
  ASSERT_EQ(all.size(), 1 + kObjects);
  EXPECT_EQ(std::get<Pickled::Object>(all.back()->value).made_by, "m." + name);
}

TEST(Pickle, NamesThatAreMadeOfTextsAreShort) {
  const auto with = [](std::size_t length) {
    std::string bytes = "\x80\x04X";
    for (int byte = 0; byte < 4; ++byte) bytes += static_cast<char>(length >> 8 * byte & 0xFFU);
    return bytes + std::string(length, 'x') + "\x94h" + std::string(1, '\0') + "\x93.";
  };
  EXPECT_EQ(std::get<Pickled::Global>(read(with(4)).root().value).name, "xxxx.xxxx");
  EXPECT_THAT([&] { (void)read(with(200)); }, ThrowsMessage<DamagedFile>(HasSubstr("a name of 400 characters")));
}

}  // namespace
}  // namespace snug
