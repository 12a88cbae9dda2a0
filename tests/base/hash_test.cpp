#include "snug/base/hash.h"

#include <gtest/gtest.h>

#include <span>
#include <string_view>

namespace snug {
namespace {

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

// As the xxhash package of PyPI has them: the same on every machine, since files and other processes compare them.
TEST(Hash, IsXxh3) {
  EXPECT_EQ(hash_64(bytes("")), 0x2d06800538d394c2ULL);
  EXPECT_EQ(hash_64(bytes("aten::addmm")), 0x41cb2ebeb1da6af9ULL);
  EXPECT_EQ(hash_128(bytes("")), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash_128(bytes("aten::addmm")), "edef831fb5cff03638a1f3a18059c9ad");
  Hash128 pieces;
  for (const char* piece : {"at", "", "en::addmm"}) pieces.add(bytes(piece));
  EXPECT_EQ(pieces.digits(), hash_128(bytes("aten::addmm")));
}

}  // namespace
}  // namespace snug
