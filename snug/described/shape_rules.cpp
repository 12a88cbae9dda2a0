#include "snug/described/shape_rules.h"

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

namespace snug::described {
namespace {

using Arguments = torch::jit::Stack;
using Results = std::vector<c10::IValue>;
using Rule = Results (*)(const Arguments&);

at::Tensor tensor(const Arguments& all, std::size_t i) { return all[i].isNone() ? at::Tensor() : all[i].toTensor(); }

std::int64_t integer(const c10::IValue& value) {
  return value.isInt() ? value.toInt() : value.toSymInt().guard_int(__FILE__, __LINE__);
}

at::Tensor like_where(const at::Tensor& t, bool wanted) {
  return wanted && t.defined() ? at::empty_like(t) : at::Tensor();
}

/// What statistics of rows are kept in.
at::TensorOptions statistics(const at::Tensor& x) {
  return x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

Results index_select(const Arguments& all) {
  const at::Tensor x = tensor(all, 0), index = tensor(all, 2);
  std::vector<std::int64_t> sizes = x.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<std::size_t>(at::maybe_wrap_dim(all[1].toInt(), x.dim()))] = index.numel();
  return {at::empty(sizes, x.options())};
}

Results embedding_dense_backward(const Arguments& all) {
  const at::Tensor gradient = tensor(all, 0);
  return {at::empty({integer(all[2]), gradient.size(-1)}, gradient.options())};
}

Results native_dropout(const Arguments& all) {
  const at::Tensor x = tensor(all, 0);
  return {at::empty_like(x), at::empty_like(x, x.options().dtype(at::kBool))};
}

Results like_the_first(const Arguments& all) { return {at::empty_like(tensor(all, 0))}; }

Results native_layer_norm(const Arguments& all) {
  const at::Tensor x = tensor(all, 0);
  const auto normalized = static_cast<std::int64_t>(all[1].toListRef().size());
  std::vector<std::int64_t> rows = x.sizes().vec();
  for (std::int64_t i = x.dim() - normalized; i < x.dim(); ++i) rows[static_cast<std::size_t>(i)] = 1;
  return {at::empty_like(x, at::MemoryFormat::Contiguous), at::empty(rows, statistics(x)),
          at::empty(rows, statistics(x))};
}

Results native_layer_norm_backward(const Arguments& all) {
  const std::vector<bool> wanted = all[7].toBoolList().vec();
  return {like_where(tensor(all, 1), wanted[0]), like_where(tensor(all, 5), wanted[1]),
          like_where(tensor(all, 6), wanted[2])};
}

Results where(const Arguments& all) {
  const at::Tensor condition = tensor(all, 0), x = tensor(all, 1), y = tensor(all, 2);
  const std::vector<std::int64_t> sizes = at::infer_size(condition.sizes(), at::infer_size(x.sizes(), y.sizes()));
  return {at::empty(sizes, x.options().dtype(at::result_type(x, y)))};
}

Results where_out(const Arguments& all) { return {tensor(all, 3)}; }

Results norms(const Arguments& all) {
  c10::List<at::Tensor> each;
  for (const at::Tensor& t : all[0].toTensorVector())
    each.push_back(at::empty({}, all[2].isNone() ? t.options() : t.options().dtype(all[2].toScalarType())));
  return {each};
}

/// Heads lie within each row, as kernels of attention write them.
at::Tensor rows_of_heads(const at::Tensor& query, std::int64_t width) {
  return at::empty({query.size(0), query.size(2), query.size(1), width}, query.options()).transpose(1, 2);
}

Results flash_attention(const Arguments& all) {
  const at::Tensor query = tensor(all, 0), value = tensor(all, 2);
  return {rows_of_heads(query, value.size(3)),
          at::empty({query.size(0), query.size(1), query.size(2)}, query.options().dtype(at::kFloat))};
}

Results flash_attention_backward(const Arguments& all) {
  Results made;
  for (std::size_t i = 1; i <= 3; ++i) made.emplace_back(rows_of_heads(tensor(all, i), tensor(all, i).size(3)));
  return made;
}

Results efficient_attention(const Arguments& all) {
  constexpr std::int64_t kRows = 32;  // that its kernels go through at a time
  const at::Tensor query = tensor(all, 0), value = tensor(all, 2);
  const std::int64_t rows = all[4].toBool() ? (query.size(2) + kRows - 1) / kRows * kRows : 0;
  const at::Tensor seed = at::empty({}, query.options().dtype(at::kLong));
  return {rows_of_heads(query, value.size(3)),
          at::empty({query.size(0), query.size(1), rows}, query.options().dtype(at::kFloat)), seed,
          at::empty_like(seed)};
}

Results efficient_attention_backward(const Arguments& all) {
  const std::vector<bool> wanted = all[10].toBoolList().vec();
  Results made;
  for (std::size_t i = 1; i <= 3; ++i) {
    made.emplace_back(wanted[i - 1] ? rows_of_heads(tensor(all, i), tensor(all, i).size(3)) : at::Tensor());
  }
  made.emplace_back(like_where(tensor(all, 4), wanted[3]));
  return made;
}

/// Of one number.
Results scalar(const Arguments& all) { return {at::empty({}, tensor(all, 0).options())}; }

Results truths(const Arguments& all) {
  return {at::empty_like(tensor(all, 0), tensor(all, 0).options().dtype(at::kBool))};
}

Results like_the_second(const Arguments& all) { return {at::empty_like(tensor(all, 1))}; }

Results together(const Arguments& all) {
  const at::Tensor x = tensor(all, 0), y = tensor(all, 1);
  return {at::empty(at::infer_size(x.sizes(), y.sizes()), x.options().dtype(at::result_type(x, y)))};
}

/// Written to the last argument.
Results unary_out(const Arguments& all) { return {tensor(all, 1).resize_(tensor(all, 0).sizes())}; }
Results binary_out(const Arguments& all) {
  return {tensor(all, 2).resize_(at::infer_size(tensor(all, 0).sizes(), tensor(all, 1).sizes()))};
}

/// What writes over its operands, and returns nothing.
Results nothing(const Arguments& /*all*/) { return {}; }

/// Of a tensor with no contents: counts are of something.
Results number(const Arguments& all) {
  const at::ScalarType type = tensor(all, 0).scalar_type();
  if (type == at::kBool) return {at::Scalar(false)};
  return {at::isFloatingType(type) ? at::Scalar(0.0) : at::Scalar(1)};
}

Results alike(const Arguments& all) { return {tensor(all, 0).sizes() == tensor(all, 1).sizes()}; }

/// By name and overload.
const std::map<std::string, Rule>& rules() {
  static const std::map<std::string, Rule> all = {
      {"aten::_foreach_norm.Scalar", norms},
      {"aten::_fused_adagrad_", nothing},
      {"aten::_fused_adagrad_.tensor_lr", nothing},
      {"aten::_fused_adam_", nothing},
      {"aten::_fused_adam_.tensor_lr", nothing},
      {"aten::_fused_adamw_", nothing},
      {"aten::_fused_adamw_.tensor_lr", nothing},
      {"aten::_fused_sgd_", nothing},
      {"aten::_fused_sgd_.tensor_lr", nothing},
      {"aten::_local_scalar_dense", number},
      {"aten::_scaled_dot_product_efficient_attention", efficient_attention},
      {"aten::_scaled_dot_product_efficient_attention_backward", efficient_attention_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward},
      {"aten::abs.out", unary_out},
      {"aten::dot", scalar},
      {"aten::embedding_dense_backward", embedding_dense_backward},
      {"aten::equal", alike},
      {"aten::flip", like_the_first},
      {"aten::floor_divide", together},
      {"aten::hardswish", like_the_first},
      {"aten::hardtanh", like_the_first},
      {"aten::index_select", index_select},
      {"aten::isnan", truths},
      {"aten::logical_and.out", binary_out},
      {"aten::logical_not.out", unary_out},
      {"aten::logical_or.out", binary_out},
      {"aten::logical_xor.out", binary_out},
      {"aten::max", scalar},
      {"aten::min", scalar},
      {"aten::mse_loss_backward", like_the_second},
      {"aten::native_dropout", native_dropout},
      {"aten::native_dropout_backward", like_the_first},
      {"aten::native_layer_norm", native_layer_norm},
      {"aten::native_layer_norm_backward", native_layer_norm_backward},
      {"aten::prod", scalar},
      {"aten::relu", like_the_first},
      {"aten::where.self", where},
      {"aten::where.self_out", where_out},
  };
  return all;
}

const Rule* rule_of(const c10::OperatorName& name) {
  const auto found = rules().find(c10::toString(name));
  return found == rules().end() ? nullptr : &found->second;
}

}  // namespace

bool has_shape_rule(const c10::OperatorName& name) { return rule_of(name) != nullptr; }

bool apply_shape_rule(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const Rule* const rule = rule_of(op.operator_name());
  if (rule == nullptr) return false;
  Results made = (*rule)(stack);
  stack.assign(std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
  return true;
}

}  // namespace snug::described
