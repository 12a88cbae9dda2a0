// What kernels look at beside their arguments: a replay finds it as it was, or notices that it is not.
#include <c10/core/DefaultDtype.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <functional>
#include <string>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace {

at::ScalarType g_result_type = at::kFloat;
std::int64_t g_result_length = 4;

/// Depends on more than its argument.
at::Tensor of_the_day(const at::Tensor& x) { return at::ones({g_result_length}, x.options().dtype(g_result_type)); }

TORCH_LIBRARY(snug_surroundings_test, library) {
  library.def("of_the_day(Tensor x) -> Tensor");
  library.impl("of_the_day", c10::DispatchKey::CPU, &of_the_day);
}

/// The process's default type for the life of the scope.
class DefaultType {
 public:
  explicit DefaultType(at::ScalarType type) : before_(c10::get_default_dtype()) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(type));
  }
  ~DefaultType() { c10::set_default_dtype(before_); }

 private:
  caffe2::TypeMeta before_;
};

}  // namespace

namespace snug {
namespace {

using ::testing::HasSubstr;
using testing::same_bits;
using ::testing::ThrowsMessage;

TEST(Surroundings, TheDefaultTypeIsThatOfTheForwardPass) {
  const at::Tensor a = at::arange(1, 65), b = at::arange(3, 67);
  const at::Tensor weight = at::ones({64}, at::kDouble).requires_grad_();
  const auto loss = [&] {
    const DefaultType type(at::kDouble);
    torch::manual_seed(3);
    return (weight * (a / b) * at::rand({64}, at::TensorOptions(testing::test_device()))).sum();
  };
  const at::Tensor expected = torch::autograd::grad({loss()}, {weight})[0];
  ASSERT_EQ(expected.scalar_type(), at::kDouble);
  const Region region(Recompute{});
  EXPECT_TRUE(same_bits(expected, torch::autograd::grad({loss()}, {weight})[0]));
  EXPECT_GE(region.replayed_ops(), 2);
  EXPECT_EQ(c10::get_default_dtype_as_scalartype(), at::kFloat);
}

TEST(Surroundings, ThatChangeWhatAnOperatorMakesAreNoticed) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("snug_surroundings_test::of_the_day", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  const at::Tensor x = at::ones({4}), weight = at::ones({4}).requires_grad_();
  const auto gradient_after = [&](const std::function<void()>& change) {
    g_result_type = at::kFloat;
    g_result_length = 4;
    const Region region(Recompute{});
    const at::Tensor loss = (op.call(x) * weight).sum();
    change();
    return torch::autograd::grad({loss}, {weight})[0];
  };
  EXPECT_TRUE(same_bits(x, gradient_after([] {})));
  const std::string name = "snug_surroundings_test::of_the_day (operator 0)";
  EXPECT_THAT([&] { (void)gradient_after([] { g_result_type = at::kInt; }); },
              ThrowsMessage<Error>(HasSubstr(name + " makes 16 bytes of Int where it made 16 of Float")));
  EXPECT_THAT([&] { (void)gradient_after([] { g_result_length = 2; }); },
              ThrowsMessage<Error>(HasSubstr(name + " makes 8 bytes of Float where it made 16 of Float")));
}

}  // namespace
}  // namespace snug
