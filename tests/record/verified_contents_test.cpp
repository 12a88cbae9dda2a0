// Contents that are remembered when they are dropped, and compared when they are made again.
#include "snug/record/verified_contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "snug/base/errors.h"

namespace snug::record {
namespace {

using ::testing::HasSubstr;

class Verified : public ::testing::Test {
 protected:
  Verified() {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::sin", "");
    calls.add(calls.begin(op, traits_of(op), c10::DispatchKeySet(c10::DispatchKey::CPU)), 0);
    calls.add_output({});
    values.flow().add_op({}, plan::kRootSegment);
    value = values.add_output(y.storage(), plan::kNoValue);
  }
  /// A saved tensor looks at part of the value, which is dropped.
  void drop() {
    verified.note(value, calls.look(y.narrow(0, 0, 4)));
    verified.remember(value, y.storage());
  }
  /// A replay has made it.
  void make(const at::Tensor& contents) { values.cache(value, contents.storage()); }

  at::Tensor y = torch::arange(8, at::kFloat);
  TapeMutex mutex;
  std::lock_guard<TapeMutex> lock{mutex};
  TapeObservers observers;
  CallLog calls;
  StreamOrder streams;
  ValueStore values{mutex, observers, streams};
  VerifiedContents verified{calls, values};
  plan::ValueId value = plan::kNoValue;
};

TEST_F(Verified, OtherBitsAreAnErrorThatSaysWhere) {
  verified.verify(VerifyReplay::Values);
  drop();
  make(y.clone());
  EXPECT_NO_THROW(verified.check(value, values.storage(value)));
  at::Tensor other = y.clone();
  other[2] = 9;
  make(other);
  try {
    verified.check(value, values.storage(value));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("aten::sin (operator 0) made other bits"));
    EXPECT_THAT(error.what(), HasSubstr("element [2], which was 2 and is 9"));
  }
}

TEST_F(Verified, WhatNoSavedTensorShowsProvesNothing) {
  verified.verify(VerifyReplay::Hashes);
  drop();
  at::Tensor other = y.clone();
  other[6] = 9;
  make(other);
  EXPECT_NO_THROW(verified.check(value, values.storage(value)));
  other[1] = 9;
  EXPECT_THROW(verified.check(value, values.storage(value)), Error);
}

TEST_F(Verified, NothingIsRememberedUntilItIsAskedFor) {
  drop();
  verified.verify(VerifyReplay::Hashes);
  make(y + 1);
  EXPECT_NO_THROW(verified.check(value, values.storage(value)));
}

}  // namespace
}  // namespace snug::record
