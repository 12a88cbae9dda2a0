#pragma once

namespace snug::ops {

enum class Activation : unsigned char {
  Gelu,      ///< x * Phi(x), by the error function
  GeluTanh,  ///< by its approximation with tanh
  Silu,      ///< x * sigmoid(x)
};

}  // namespace snug::ops
