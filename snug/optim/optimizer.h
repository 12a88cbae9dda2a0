#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/own_key.h"
#include "snug/optim/parameter_groups.h"

namespace snug::optim {

/// How something that is kept of a parameter follows from its shape, and so what of it belongs to a part.
enum class StateShape : std::uint8_t {
  AsParameter,  ///< the same
  Elements,     ///< one for each element, in one dimension
  Blocks,       ///< one for each 256 of them, or fewer at the end
  One           ///< one in all, the same for each part
};

inline constexpr std::int64_t kStateBlock = 256;

/// What is kept of a parameter, or of this part of it.
struct PartOfState {
  std::string name;
  at::Tensor tensor;
  std::vector<std::int64_t> shape;  ///< of what is kept of the whole
  std::int64_t first = 0;           ///< element of that which the tensor begins with
  at::Tensor parameter;             ///< that it is kept of: the whole one
  StateShape follows = StateShape::AsParameter;
};

/// Updates parameters from their gradients. What it keeps is made when it is made and not at the first step, so that a
/// plan made in between knows of it. Parameters in bf16 or fp16 are updated in fp32, as FewBitWeights says; to put
/// other contents into one that has a master, write its master too (see named_state) or make the optimizer anew.
/// Parameters must be floating point.
///
/// An optimizer derives from this: its constructor makes what it keeps of each parameter, of zeros_for(), under
/// memory::Tag::Optimizer; update() is its rule, and own_state() what it keeps. A file of its own under optim, with an
/// OptimizerKind, and a line in optimizer_kinds() make it one that optimizer.kind takes.
class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer() = default;

  /// One update of every parameter that has a gradient.
  void step(double learning_rate);
  /// Of this one alone, if it has one: once for each of parameters(), in any order, is what step() does, bit for bit.
  void step(std::size_t parameter, double learning_rate);

  /// What a step takes in time and memory, without its effect: it overwrites the gradients with zeros, and leaves
  /// parameters and state bit for bit as they are; a parameter with a master copy is what that rounds to. Who reads
  /// parameters meanwhile, as another process may, finds them as they are. State, after the first step, is copied
  /// first, out of the device's memory, and copied back: throws Error where that fails.
  void rehearse();
  void rehearse(std::size_t parameter);

  /// Frees all gradients.
  void zero_grad();

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

  /// What it keeps, for snapshots: tensors that step() writes in place.
  [[nodiscard]] std::vector<at::Tensor> state() const;

  /// The same by name, for files: "<what>.<parameter>", by the names of the parameters in their order: own_state(),
  /// "step" and, where there is one, "master". Throws std::logic_error when there are more or fewer names.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> named_state(
      const std::vector<std::string>& parameter_names) const;
  /// The same, with where in the whole each belongs; where parameters are whole, all of it.
  [[nodiscard]] std::vector<PartOfState> parts_of_state(const std::vector<std::string>& parameter_names) const;

 protected:
  /// `weight_decay`: of the groups that have none of their own. Throws UsageError as grouped() does, and for stochastic
  /// rounding of a parameter in fp16, as it is for bf16.
  Optimizer(const Parameters& parameters, double weight_decay);

  /// What is updated in one call: parameters of one group and one device, which are in fp32 or of more bits.
  struct Update {
    std::vector<std::size_t> members;  ///< which of parameters()
    std::vector<at::Tensor> parameters, gradients;
    std::vector<at::Tensor> steps;  ///< how many this makes, fp32 scalars
    double learning_rate = 0;
    double weight_decay = 0;
  };
  /// Updates in place, without gradients being recorded; what one parameter becomes does not depend on which others are
  /// in the call. Of gradients and a learning rate of zero, before the first step, nothing may come: see rehearse().
  virtual void update(Update& u) = 0;

  /// What is kept of one parameter.
  struct OwnState {
    std::string_view name;
    at::Tensor tensor;
    StateShape shape = StateShape::AsParameter;
    int at_first = 0;  ///< what all of it is before the first step
  };
  /// Always the same tensors.
  [[nodiscard]] virtual std::vector<OwnState> own_state(std::size_t parameter) const = 0;

  /// Of a parameter's shape, in the type that it is updated in.
  [[nodiscard]] at::Tensor zeros_for(std::size_t parameter) const;

 private:
  void run(Update& u);
  void run_and_tell(Update& u);
  [[nodiscard]] bool is_streamed(std::size_t parameter) const;
  /// Those that have a gradient, all of one group.
  void update_members(const ParameterGroup& group, const std::vector<std::size_t>& members, double learning_rate);
  void update_in_fp32(Update alone, std::size_t parameter);
  template <class Step>
  void rehearse_of(std::size_t first, std::size_t end, const Step& step);

  std::vector<at::Tensor> parameters_;
  std::vector<PartOf> parts_;  // one for each
  std::vector<ParameterGroup> groups_;
  std::vector<std::size_t> group_of_;
  FewBitWeights few_bits_;
  std::vector<at::Tensor> masters_;  // undefined for parameters that have none
  std::vector<at::Tensor> steps_;
};

/// What an optimizer looks at to update an element.
enum class UpdatesBy : std::uint8_t {
  Elements,  ///< that element: parts of parameters can be updated apart
  Blocks,    ///< its block of kStateBlock, too: parts of whole blocks can be
  Matrices   ///< the whole parameter
};

/// An optimizer that can be chosen by its name.
struct OptimizerKind {
  std::string_view name;  ///< what optimizer.kind takes
  UpdatesBy updates_by = UpdatesBy::Elements;
  std::vector<OwnKey> keys;  ///< of the section [optimizer], beside those of all
  std::unique_ptr<Optimizer> (*make)(const Parameters& parameters, const OwnValues& values);
};

/// All there are, the default first.
const std::vector<const OptimizerKind*>& optimizer_kinds();

/// The one of that name. Throws UsageError for a name that is none.
const OptimizerKind& optimizer_kind(std::string_view name);

/// A key that several have.
inline const OwnKey kWeightDecay{"weight_decay", 0.1, "decoupled weight decay", kNotNegative, {}, Resumed::Free};

}  // namespace snug::optim
