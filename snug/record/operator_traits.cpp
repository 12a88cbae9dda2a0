#include "snug/record/operator_traits.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_set>

#include "snug/base/hash.h"
#include "snug/plan/step/together.h"
#include "snug/record/declared_operators.h"
#include "snug/record/view.h"

namespace snug::record {
namespace {

/// In-place operators that do not read what they write.
const std::unordered_set<std::string_view>& overwriters() {
  static const std::unordered_set<std::string_view> names = {
      "aten::copy_",       "aten::fill_",          "aten::zero_",          "aten::normal_", "aten::uniform_",
      "aten::random_",     "aten::bernoulli_",     "aten::exponential_",   "aten::cauchy_", "aten::geometric_",
      "aten::log_normal_", "aten::_foreach_zero_", "aten::_foreach_copy_",
  };
  return names;
}

const std::unordered_set<std::string_view>& uninitialized() {
  static const std::unordered_set<std::string_view> names = {
      "aten::empty",   "aten::empty_like", "aten::empty_strided",  "aten::new_empty", "aten::new_empty_strided",
      "aten::resize_", "aten::resize_as_", "aten::empty_permuted",
  };
  return names;
}

/// Those that make views whatever they are given, and those that look at sizes and types. Others, such as `reshape`,
/// may copy.
const std::unordered_set<std::string_view>& lookers() {
  static const std::unordered_set<std::string_view> names = {
      "aten::alias",
      "aten::as_strided",
      "aten::detach",
      "aten::diagonal",
      "aten::empty_like",
      "aten::empty_permuted",
      "aten::expand",
      "aten::full_like",
      "aten::is_same_size",
      "aten::new_empty",
      "aten::new_full",
      "aten::new_ones",
      "aten::new_zeros",
      "aten::ones_like",
      "aten::permute",
      "aten::select",
      "aten::slice",
      "aten::split",
      "aten::squeeze",
      "aten::split_with_sizes",
      "aten::t",
      "aten::transpose",
      "aten::unbind",
      "aten::unfold",
      "aten::unsqueeze",
      "aten::view",
      "aten::view_as_real",
      "aten::view_as_complex",
      "aten::zeros_like",
      "aten::new_empty_strided",
      "aten::_reshape_alias",
  };
  return names;
}

/// Of collectives whose results others fill until somebody waits for them.
bool is_functional_collective(std::string_view name) {
  return name.starts_with("_c10d_functional::") || name.starts_with("c10d_functional::");
}

/// Whose operators talk to other processes. Their schemas say little of what they write, and no version rises.
bool is_collective(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNamespaces = {"c10d",     "_c10d_functional", "_c10d_functional_autograd",
                                                           "_dtensor", "c10d_functional",  "symm_mem"};
  return std::ranges::find(kNamespaces, name.substr(0, name.find("::"))) != kNamespaces.end();
}

OperatorTraits::Collective collective_of(std::string_view name) {
  using enum OperatorTraits::Collective;
  if (!is_collective(name)) return No;
  if (!is_functional_collective(name)) return AtOnce;
  return name.ends_with("::wait_tensor") || name.ends_with("::wait_tensors") ? Waits : FillsLater;
}

/// Operators of LibTorch itself, and of snug: their tags and tables are complete.
bool is_libtorchs(std::string_view name) {
  constexpr std::array<std::string_view, 6> kNamespaces = {"aten",     "prim", "prims",
                                                           "profiler", "snug", "snug_collective"};
  return std::ranges::find(kNamespaces, name.substr(0, name.find("::"))) != kNamespaces.end();
}

bool has_tensors(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  return std::ranges::any_of(type.containedTypes(), [](const c10::TypePtr& inside) { return has_tensors(*inside); });
}

OperatorTraits::Argument argument_kind(const c10::Argument& argument) {
  using Kind = OperatorTraits::Argument;
  c10::TypePtr type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() == c10::TypeKind::TensorType) return Kind::Tensor;
  if (type->kind() == c10::TypeKind::GeneratorType) return Kind::Generator;
  if (type->kind() == c10::TypeKind::AnyType) return Kind::Nested;
  if (type->kind() == c10::TypeKind::ClassType) return Kind::Object;
  if (const auto list = type->cast<c10::ListType>()) {
    const c10::TypePtr element = list->getElementType();
    if (element->kind() == c10::TypeKind::TensorType) return Kind::TensorList;
    if (const auto optional = element->cast<c10::OptionalType>()) {
      if (optional->getElementType()->kind() == c10::TypeKind::TensorType) return Kind::OptionalTensorList;
    }
  }
  return has_tensors(*type) ? Kind::Nested : Kind::Other;
}

bool is_write(const c10::AliasInfo* alias) {
  if (alias == nullptr) return false;
  if (alias->isWrite()) return true;
  for (const c10::AliasInfo& contained : alias->containedTypes()) {
    if (contained.isWrite()) return true;
  }
  return false;
}

/// What of a declaration is of this overload: others may have fewer arguments.
void declare(const OperatorDeclaration& declared, const c10::FunctionSchema& schema, OperatorTraits& traits) {
  const auto arguments = static_cast<int>(schema.arguments().size()),
             results = static_cast<int>(schema.returns().size());
  for (const int position : declared.writes) {
    if (position < arguments) traits.hidden_writes.positions.push_back(position);
  }
  const auto is_bool = [&](int i) {
    return i < arguments && schema.arguments()[i].type()->kind() == c10::TypeKind::BoolType;
  };
  if (declared.writes_only_if && is_bool(*declared.writes_only_if))
    traits.hidden_writes.only_if = declared.writes_only_if;
  if (declared.scratch_result && *declared.scratch_result < results) traits.scratch_result = *declared.scratch_result;
  if (declared.draws) traits.draws = *declared.draws ? OperatorTraits::Draws::Always : OperatorTraits::Draws::Never;
  using KeepsState = OperatorTraits::KeepsState;
  if (declared.keeps_state) traits.keeps_state = *declared.keeps_state ? KeepsState::Always : KeepsState::Never;
}

/// LibTorch 2.11 has no such tag.
template <class Tag>
bool is_tagged_out(const c10::OperatorHandle& op) {
  if constexpr (requires { Tag::out; })
    return op.hasTag(Tag::out);
  else
    return false;
}

std::unique_ptr<OperatorTraits> read_traits(const c10::OperatorHandle& op) {
  auto traits = std::make_unique<OperatorTraits>();
  const c10::FunctionSchema& schema = op.schema();
  traits->name = schema.name();
  // In LibTorch's own names what is written and has to be named is an `out`; others say so by a tag.
  const bool has_outs = traits->name.starts_with("aten::") || is_tagged_out<at::Tag>(op);
  const bool overwrites = overwriters().contains(traits->name);
  for (const c10::Argument& argument : schema.arguments()) {
    traits->arguments.push_back(argument_kind(argument));
    const bool written = is_write(argument.alias_info());
    traits->writes.push_back(written);
    traits->overwrites.push_back(written && (overwrites || (has_outs && argument.kwarg_only())));
    traits->writes_any = traits->writes_any || written;
  }
  traits->only_writes = traits->writes_any && std::ranges::all_of(schema.returns(), [](const c10::Argument& result) {
                          return is_write(result.alias_info());
                        });
  traits->uninitialized = uninitialized().contains(traits->name);
  traits->collective = collective_of(traits->name);
  traits->runs = plan::runs_of(traits->name);
  traits->annotation = traits->name.starts_with("profiler::");
  traits->rebinds =
      traits->name == "aten::set_" || traits->name == "aten::set_data" || traits->name == "aten::shallow_copy_data_";
  if (traits->writes_any && op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView)) {
    // torch.library.custom_op does it before, what is made of C++ after.
    const bool early = op.debug().find("torch/_library/custom_ops.py") != std::string::npos;
    traits->raises = early ? OperatorTraits::Raises::BeforeTheKernel : OperatorTraits::Raises::AfterTheKernel;
  } else if (traits->writes_any && traits->name.starts_with("aten::")) {
    // Composite operators call others, which may raise versions. Kernels such as fused optimizers raise none.
    const bool of_operators = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                              op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
                              op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    const bool writes_contents = traits->name != "aten::record_stream";
    if (of_operators || !writes_contents) traits->raises = OperatorTraits::Raises::Perhaps;
  }
  // As the names of LibTorch's operators say, it writes its first argument; whether the schema does, or not.
  if (traits->collective != OperatorTraits::Collective::No && traits->name.ends_with('_') && !traits->arguments.empty())
    traits->hidden_writes.positions = {0};
  traits->foreign = !is_libtorchs(traits->name);
  if (!traits->writes_any && lookers().contains(traits->name)) {
    traits->reads = OperatorTraits::Reads::Nothing;
  } else if (!traits->foreign && op.hasTag(at::Tag::pointwise)) {
    traits->reads = OperatorTraits::Reads::Elements;
  }
  if (op.hasTag(at::Tag::nondeterministic_seeded)) {
    traits->draws = OperatorTraits::Draws::Always;
  } else if (traits->foreign && !traits->annotation) {
    traits->draws = OperatorTraits::Draws::Perhaps;
  }
  if (traits->foreign && !traits->annotation) {
    const bool takes_object =
        std::ranges::find(traits->arguments, OperatorTraits::Argument::Object) != traits->arguments.end();
    traits->keeps_state = takes_object ? OperatorTraits::KeepsState::Always : OperatorTraits::KeepsState::Perhaps;
  }
  traits->composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  if (const auto declared = declaration_of(traits->name)) declare(*declared, schema, *traits);
  if (!schema.overload_name().empty()) traits->name += "." + schema.overload_name();
  traits->hash = hash_64(std::as_bytes(std::span(traits->name)));
  return traits;
}

}  // namespace

bool OperatorTraits::may_write(std::size_t position) const {
  return writes[position] != 0 ||
         std::ranges::find(hidden_writes.positions, static_cast<int>(position)) != hidden_writes.positions.end();
}

bool writes(const OperatorTraits& traits, const c10::IValue* arguments, std::size_t position) {
  if (traits.writes[position] != 0) return true;
  if (!traits.may_write(position)) return false;
  return !traits.hidden_writes.only_if || arguments[*traits.hidden_writes.only_if].toBool();
}

namespace {

/// Rises when an operator goes: another may come with its name, or with its schema's address.
std::atomic<std::uint64_t>& removals() {
  struct Listener final : c10::OpRegistrationListener {
    std::atomic<std::uint64_t> count = 0;
    void onOperatorRegistered(const c10::OperatorHandle&) override {}
    void onOperatorDeregistered(const c10::OperatorHandle&) override { ++count; }
  };
  static std::atomic<std::uint64_t>& count = [&]() -> std::atomic<std::uint64_t>& {
    auto listener = std::make_unique<Listener>();
    std::atomic<std::uint64_t>& counter = listener->count;
    // For the life of the process.
    static auto* handle =
        new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().addRegistrationListener(std::move(listener)));
    static_cast<void>(handle);
    return counter;
  }();
  return count;
}

/// Of one schema each, by its address, since the latest removal and declaration.
struct TraitsBySchema {
  std::uint64_t as_of = 0;
  ska::flat_hash_map<const void*, const OperatorTraits*> traits;

  void catch_up(std::uint64_t now) {
    if (as_of == now) return;
    traits.clear();
    as_of = now;
  }
};

}  // namespace

std::uint64_t operator_removals() noexcept { return removals().load(std::memory_order_acquire); }

const OperatorTraits& traits_of(const c10::OperatorHandle& op) {
  // Per thread, so that the common case takes no lock; the traits themselves are shared and never freed.
  static thread_local TraitsBySchema known;
  // Both only rise.
  const std::uint64_t now = operator_removals() + declarations();
  known.catch_up(now);
  const void* key = &op.schema();
  if (const auto found = known.traits.find(key); found != known.traits.end()) return *found->second;
  static std::mutex mutex;
  static auto* all = new TraitsBySchema;
  const std::lock_guard lock(mutex);
  if (now > all->as_of) all->catch_up(now);
  const OperatorTraits*& traits = all->traits[key];
  if (traits == nullptr) traits = read_traits(op).release();
  known.traits.emplace(key, traits);
  return *traits;
}

bool is_beyond_values(const OperatorTraits& traits, const c10::IValue* arguments) {
  using Kind = OperatorTraits::Argument;
  if (traits.keeps_state == OperatorTraits::KeepsState::Always) return true;
  for (std::size_t i = 0; i < traits.arguments.size(); ++i) {
    const Kind kind = traits.arguments[i];
    if (kind == Kind::Generator || kind == Kind::Object || kind == Kind::Other) continue;
    bool beyond = false;
    for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      beyond = beyond || kind == Kind::Nested || (!is_plain(tensor) && !is_constant(tensor));
    });
    if (beyond) return true;
  }
  return false;
}

}  // namespace snug::record
