#include "snug/state/load_weights.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/listing.h"

namespace snug::state {
namespace {

/// Not when it is expanded from fewer numbers than it has.
bool has_memory(const at::Tensor& t) {
  return t.storage().nbytes() >= static_cast<std::size_t>(t.numel()) * t.itemsize();
}

}  // namespace

void load_weights(torch::nn::Module& module, const StoredTensors& tensors, std::string_view from,
                  const LoadOptions& options) {
  std::map<std::string, at::Tensor> wanted;
  for (const auto& p : module.named_parameters()) wanted.emplace(p.key(), p.value());
  for (const auto& b : module.named_buffers()) wanted.emplace(b.key(), b.value());
  std::map<std::string, const StoredTensor*> found;
  std::vector<std::string> missing, extra, misshapen;
  for (const auto& [name, tensor] : tensors) {
    const std::optional<std::string> own = options.rename ? options.rename(name) : std::optional(name);
    if (!own) continue;
    const auto target = wanted.find(*own);
    if (target == wanted.end()) {
      extra.push_back(name);
    } else if (!found.emplace(*own, &tensor).second) {
      extra.push_back(fmt::format("{} (a second {})", name, *own));
    } else if (target->second.sizes() != at::IntArrayRef(tensor.shape)) {
      misshapen.push_back(fmt::format("{} ({} in the file, {} in the model)", *own, fmt::join(tensor.shape, "x"),
                                      fmt::join(target->second.sizes(), "x")));
    }
  }
  // A tensor that has two names in the module need be there under one.
  std::set<const void*> there;
  for (const auto& [name, stored] : found) there.insert(wanted.at(name).unsafeGetTensorImpl());
  for (const auto& [name, tensor] : wanted) {
    if (!there.contains(tensor.unsafeGetTensorImpl())) missing.push_back(name);
  }
  std::vector<std::string> faults;
  if (!missing.empty()) faults.push_back(fmt::format("{} missing: {}", missing.size(), listed(missing)));
  if (!extra.empty()) faults.push_back(fmt::format("{} left over: {}", extra.size(), listed(extra)));
  if (!misshapen.empty()) faults.push_back(fmt::format("{} of another shape: {}", misshapen.size(), listed(misshapen)));
  if (!faults.empty()) {
    throw UsageError(fmt::format("loading weights from {}: of {} tensors, {}; is it the file of this model?", from,
                                 wanted.size(), fmt::join(faults, "; ")));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, stored] : found) {
    at::Tensor& target = wanted.at(name);
    if (has_memory(target)) {
      target.copy_(stored->read());
    } else {
      target.set_data(stored->read().to(target.options(), /*non_blocking=*/false, /*copy=*/true));
    }
  }
}

}  // namespace snug::state
