#include "snug/models/row_parts.h"

#include <torch/types.h>

#include <vector>

namespace snug::models {

at::Tensor in_parts(const at::Tensor& x, std::int64_t rows, const std::function<at::Tensor(const at::Tensor&)>& f) {
  const at::Tensor matrix = x.reshape({-1, x.size(-1)});
  if (rows <= 0 || rows >= matrix.size(0)) return f(x);
  std::vector<at::Tensor> parts;
  for (const at::Tensor& part : matrix.split(rows)) parts.push_back(f(part));
  const at::Tensor whole = at::cat(parts);
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes.back() = whole.size(1);
  return whole.view(sizes);
}

}  // namespace snug::models
