// The books of images: when their decoded contents and they themselves go.
#include "snug/plan/run/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace snug::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ValueId kValue = 3;

/// One with so many saved tensors, when the forward pass is over.
Images with_packs(int packs) {
  Images images;
  images.add(kValue);
  for (int i = 0; i < packs; ++i) images.pack(kValue);
  EXPECT_THAT(images.settle(), IsEmpty());
  return images;
}

TEST(Images, StayDecodedUntilNobodyWaits) {
  Images images = with_packs(2);
  EXPECT_FALSE(images.decoded(kValue));
  images.set_decoded(kValue);
  EXPECT_FALSE(images.consume(kValue).decoded);
  EXPECT_TRUE(images.decoded(kValue));
  EXPECT_FALSE(images.release(kValue, Unpacked::Now).decoded) << "the other one waits";
  EXPECT_TRUE(images.consume(kValue).decoded);
  const Images::Gone gone = images.release(kValue, Unpacked::Now);
  EXPECT_FALSE(gone.decoded) << "it went before";
  EXPECT_TRUE(gone.image);
  EXPECT_FALSE(images.has(kValue));
}

TEST(Images, GoWithWhatIsReleasedAndWasNeverUnpacked) {
  Images images = with_packs(2);
  images.set_decoded(kValue);
  EXPECT_FALSE(images.consume(kValue).decoded);
  EXPECT_FALSE(images.release(kValue, Unpacked::Now).image);
  const Images::Gone gone = images.release(kValue, Unpacked::Not);
  EXPECT_TRUE(gone.decoded);
  EXPECT_TRUE(gone.image);
}

TEST(Images, StayUntilTheForwardPassIsOverAsMoreMayBeSaved) {
  Images images;
  images.add(kValue);
  images.pack(kValue);
  EXPECT_FALSE(images.release(kValue, Unpacked::Not).image);
  EXPECT_TRUE(images.has(kValue));
  images.add(kValue);  // the same one
  images.add(kValue + 1);
  images.pack(kValue + 1);
  EXPECT_THAT(images.settle(), ElementsAre(kValue));
  EXPECT_TRUE(images.has(kValue + 1));
}

TEST(Images, AreDecodedAnewInEachBackwardPass) {
  Images images = with_packs(1);
  for (int pass = 0; pass < 2; ++pass) {
    images.begin_pass();
    EXPECT_FALSE(images.decoded(kValue));
    images.set_decoded(kValue);
    EXPECT_TRUE(images.consume(kValue).decoded);
  }
  images.begin_pass();
  images.set_decoded(kValue);
  EXPECT_THAT(images.end_pass(), ElementsAre(kValue)) << "it was decoded for somebody who did not consume it";
  EXPECT_THAT(images.end_pass(), IsEmpty());
}

}  // namespace
}  // namespace snug::plan
