#include "snug/described/kernel_seconds.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

namespace snug::described {
namespace {

double bytes_of(c10::ArrayRef<c10::IValue> values) {
  double bytes = 0;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) bytes += static_cast<double>(value.toTensor().nbytes());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) bytes += t.defined() ? static_cast<double>(t.nbytes()) : 0;
    }
  }
  return bytes;
}

/// Operators that read, or write, a few places of their first operand, as many as there are in what stands for the
/// places, or comes out.
bool picks(std::string_view name) {
  constexpr std::array kThose = {"aten::gather",       "aten::scatter_",  "aten::scatter_add_",
                                 "aten::index_select", "aten::embedding", "aten::nll_loss_forward"};
  return std::ranges::find(kThose, name) != kThose.end();
}

/// That a kernel reads and writes.
double traffic(std::string_view name, c10::ArrayRef<c10::IValue> arguments, c10::ArrayRef<c10::IValue> results) {
  if (!picks(name)) return bytes_of(arguments) + bytes_of(results);
  const bool in_place = name.ends_with('_');
  return bytes_of(arguments.slice(1)) + (in_place ? bytes_of(arguments.slice(1)) : 2 * bytes_of(results));
}

double elements(const at::Tensor& t) { return static_cast<double>(t.numel()); }

/// Multiplications and additions.
double arithmetic(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments,
                  c10::ArrayRef<c10::IValue> results) {
  const std::string_view name = schema.name();
  const auto is = [&](std::string_view prefix) { return name.starts_with(prefix); };
  const auto tensor = [&](std::size_t i) { return arguments[i].toTensor(); };
  const auto product = [&](std::size_t left) {
    return 2 * elements(results[0].toTensor()) * static_cast<double>(tensor(left).size(-1));
  };
  if (is("aten::mm") || is("aten::bmm")) return product(0);
  if (is("aten::addmm") || is("aten::baddbmm")) return product(1);
  // Each element of the output is a sum over those of a filter.
  const auto filter = [](const at::Tensor& weight) { return elements(weight) / static_cast<double>(weight.size(0)); };
  if (is("aten::convolution_backward")) return 4 * elements(tensor(0)) * filter(tensor(2));
  if (is("aten::convolution")) return 2 * elements(results[0].toTensor()) * filter(tensor(1));
  if (is("aten::_scaled_dot_product_")) {
    constexpr double kForward = 2, kBackward = 5;  // products of every query with every key
    const bool backward = name.find("backward") != std::string_view::npos;
    const std::size_t query = backward ? 1 : 0;
    const std::optional<int> causal = schema.argumentIndexWithName("is_causal");
    const double share = causal && arguments[static_cast<std::size_t>(*causal)].toBool() ? 0.5 : 1;  // of the keys
    return share * 2 * (backward ? kBackward : kForward) * elements(tensor(query)) *
           static_cast<double>(tensor(query + 1).size(-2));
  }
  return 0;
}

bool in_few_bits(c10::ArrayRef<c10::IValue> results) {
  const at::Tensor first = results.empty() || !results[0].isTensor() ? at::Tensor() : results[0].toTensor();
  return first.defined() && first.element_size() == 2;
}

}  // namespace

double kernel_seconds(const KernelSpeed& speed, const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments,
                      c10::ArrayRef<c10::IValue> results) {
  const std::string_view name = op.schema().name();
  const double work = arithmetic(op.schema(), arguments, results);
  const double flops = work > 0 && in_few_bits(results) ? speed.flops : speed.flops_of_fp32;
  return std::max({speed.least_seconds, work / flops, traffic(name, arguments, results) / speed.bytes_per_second});
}

}  // namespace snug::described
