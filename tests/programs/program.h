#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace snug::programs {

/// One instruction of a random program. `kind` and its variant say what to do, the operands which of the live values it
/// is done to; all numbers are taken modulo what there is, so that any bytes are a program.
struct Instruction {
  std::uint8_t kind = 0;
  std::uint8_t variant = 0;
  std::uint8_t first = 0;
  std::uint8_t second = 0;
};

/// A differentiable program: instructions over a set of live values that begins with weights and data.
struct Program {
  std::uint16_t seed = 0;
  bool second_order = false;
  std::vector<Instruction> instructions;
};

/// "dropout 3 of value 7"
std::string name_of(const Instruction& instruction);
void showValue(const Program& program, std::ostream& out);  // RapidCheck's hook

/// A piece of a program: from the live values before it to those after it. Without effects on anything else but the
/// random numbers, so that it may be called twice.
using Piece = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

/// What instructions that open and close regions and that checkpoint the instructions behind them do; nothing in a
/// plain run.
struct RegionCalls {
  std::function<void(std::uint8_t kind)> open = [](std::uint8_t) {};
  std::function<void()> close = [] {};
  std::function<std::vector<at::Tensor>(std::uint8_t kind, const Piece& piece, std::vector<at::Tensor> live)>
      checkpoint =
          [](std::uint8_t, const Piece& piece, std::vector<at::Tensor> live) { return piece(std::move(live)); };
};

/// The weights, buffers and modules that programs work on, the same for the same seed.
class World {
 public:
  explicit World(std::uint16_t seed);

  /// Runs the program and returns its loss: undefined when nothing that is left depends on a weight. An instruction
  /// that LibTorch refuses is skipped and noted.
  at::Tensor run(const Program& program, const RegionCalls& regions = {});

  /// Every weight, and each value that was alive at the end of the latest run.
  [[nodiscard]] const std::vector<at::Tensor>& weights() const noexcept { return weights_; }
  [[nodiscard]] const std::vector<at::Tensor>& outputs() const noexcept { return outputs_; }
  /// The buffers that instructions update.
  [[nodiscard]] std::vector<at::Tensor> buffers() const;
  /// One letter for each instruction: whether it ran, or was refused.
  [[nodiscard]] const std::string& trace() const noexcept { return trace_; }

  /// Lets go of the outputs.
  void forget() { outputs_.clear(); }
  /// Weights' gradients away, buffers as in the beginning, random numbers from `seed`.
  void reset(std::uint16_t seed);

 private:
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> data_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<at::Tensor> first_buffers_, first_weights_;
  std::vector<at::Tensor> outputs_;
  std::string trace_;
};

/// How many kinds of instructions there are.
std::size_t kinds();

}  // namespace snug::programs
